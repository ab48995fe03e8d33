"""The stack of the corpus, started once for this folder, and the corpus as it runs on it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.corpus.running import Runs, run_tables
from tests.contract.corpus.stack import CorpusStack, corpus_stack
from tests.contract.corpus.tables.all_tables import TABLES, tenants


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CorpusStack]:
    """Two gateways with everything behind them."""
    async with corpus_stack(tmp_path_factory.mktemp("corpus"), tenants()) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def runs(stack: CorpusStack) -> Runs:
    """What came of all exchanges."""
    return await run_tables(stack, TABLES)
