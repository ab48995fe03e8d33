"""Follows the results of a batch as they come, and counts them."""

from services.gateway.batches.batch_streams import BatchStreams


class ResultFollower:
    """Knows which requests have a result.

    Args:
        streams: Has the results.
        batch_id: The batch.

    Attributes:
        numbers: Lines whose request has a result.
        completed: Results for the output file.
        failed: Results for the error file.
    """

    def __init__(self, streams: BatchStreams, batch_id: str) -> None:
        self._streams = streams
        self._batch_id = batch_id
        self._seen = 0
        self.numbers: set[int] = set()
        self.completed = 0
        self.failed = 0

    async def read_on(self) -> bool:
        """Reads what has come; returns whether there was something."""
        before = len(self.numbers)
        while found := await self._streams.results(self._batch_id, self._seen):
            self._seen = found[-1].seq
            for result in found:
                self.numbers.add(result.number)
                self.completed += result.ok
                self.failed += not result.ok
        return len(self.numbers) != before
