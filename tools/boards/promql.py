"""PromQL that several boards use."""

from tools.boards.board import BoardQuery

RATE = "$__rate_interval"


def rate(selector: str, by: str = "") -> str:
    """Return the growth per second of counters, summed."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({selector}[{RATE}]))"


def quantile(share: float, histogram: str, by: str = "", labels: str = "") -> str:
    """Return the quantile of a histogram over the rate interval."""
    grouped = f"le, {by}" if by else "le"
    selector = f"{histogram}_bucket{{{labels}}}" if labels else f"{histogram}_bucket"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({selector}[{RATE}])))"


def quantiles(histogram: str, labels: str = "") -> tuple[BoardQuery, ...]:
    """Return queries for the median, and the slowest of twenty and of a hundred."""
    return tuple(
        BoardQuery(quantile(share, histogram, labels=labels), f"p{share * 100:g}")
        for share in (0.5, 0.95, 0.99)
    )


def of_group(expr: str) -> str:
    """Return the expression for the groups that the variable `group` names, with the label `group`."""
    return f'({expr}) * on (job, instance) group_left (group) ryz_worker_info{{group=~"$group"}}'
