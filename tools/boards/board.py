"""A thin layer over Grafana's builders: rows of panels in one style, queries as PromQL and legend.

Queries are plain PromQL with Grafana's `$__rate_interval` and the board's variables. Panels have ids in their
order, so that links to them stay valid.
"""

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "ryzanstein"
_WIDTH, _HEIGHT = 8, 7  # of 24 columns


class BoardQuery(NamedTuple):
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: What its series are called, such as `{{group}}`; empty: their labels.
    """

    expr: str
    legend: str = ""


class BoardVariable(NamedTuple):
    """A variable that narrows a board.

    Attributes:
        name: Used as `$name` in queries, as a regular expression.
        label: Shown beside its box.
        selector: The series that have its values.
        source: The label that has them; empty: the one named like the variable.
    """

    name: str
    label: str
    selector: str
    source: str = ""

    @property
    def query(self) -> str:
        """Return the query of Grafana's data source."""
        return f"label_values({self.selector}, {self.source or self.name})"


class Board:
    """One board that grows by rows and panels.

    Args:
        name: Of its file, and its uid.
        title: Shown in lists.
        text: What it answers.
        variables: In the order of their boxes.
    """

    def __init__(self, name: str, title: str, text: str, variables: Sequence[BoardVariable] = ()) -> None:
        self.name = name
        self._panels = 0
        self._builder = (
            dashboard.Dashboard(f"Ryzanstein / {title}")
            .uid(f"ryzanstein-{name}")
            .description(text)
            .tags([TAG])
            .editable()
            .refresh("10s")
            .time("now-30m", "now")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
            .link(
                dashboard.DashboardLink("Boards")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .keep_time(True)
                .include_vars(True)
            )
        )
        for one in variables:
            self._builder.with_variable(
                dashboard.QueryVariable(one.name)
                .label(one.label)
                .datasource(SOURCE)
                .query(one.query)
                .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
                .sort(VariableSort.ALPHABETICAL_ASC)
                .include_all(True)
                .all_value(".*")
                .current(VariableOption(selected=True, text="All", value="$__all"))
                .multi(True)
            )

    def row(self, title: str) -> None:
        """Begin a row."""
        self._panels += 1
        self._builder.with_row(dashboard.Row(title).id(self._panels))

    def lines(
        self, title: str, text: str, unit: str, *queries: BoardQuery, stacked: bool = False, top: float = 0.0
    ) -> None:
        """Add a panel with lines over time.

        Args:
            text: What it means, and what to do where it is high.
            unit: Grafana's name of the unit.
            stacked: Show the sum of the series.
            top: The upper end of the axis; 0: as needed.
        """
        self._panels += 1
        panel = (
            timeseries.Panel()
            .id(self._panels)
            .title(title)
            .description(text)
            .datasource(SOURCE)
            .unit(unit)
            .min(0)
            .span(_WIDTH)
            .height(_HEIGHT)
            .draw_style(GraphDrawStyle.LINE)
            .fill_opacity(30 if stacked else 5)
            .legend(
                common.VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        )
        if stacked:
            panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        if top:
            panel.max(top)
        for number, one in enumerate(queries):
            panel.with_target(_target(number, one))
        self._builder.with_panel(panel)

    def number(self, title: str, text: str, unit: str, query: BoardQuery) -> None:
        """Add a panel with the newest value of each series as a number."""
        self._panels += 1
        self._builder.with_panel(
            stat.Panel()
            .id(self._panels)
            .title(title)
            .description(text)
            .datasource(SOURCE)
            .unit(unit)
            .span(4)
            .height(4)
            .color_mode(BigValueColorMode.NONE)
            .with_target(_target(0, query))
        )

    def render(self) -> str:
        """Return the JSON of the board."""
        return JSONEncoder(sort_keys=True, indent=1).encode(self._builder.build()) + "\n"


def _target(number: int, query: BoardQuery) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(chr(ord("A") + number)).datasource(SOURCE).expr(query.expr)
    return target.legend_format(query.legend) if query.legend else target
