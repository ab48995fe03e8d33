"""What a fine-tuning refuses, in one sentence that says what is wrong and what to do."""


class FinetuneError(Exception):
    """The data, the model, an option or the memory of this machine does not allow the training."""


class BadChats(FinetuneError):
    """Lines of the data that cannot be used; the text has file, line number and reason of each."""


class Stopped(Exception):
    """A signal ended the training; its state is in a checkpoint.

    Attributes:
        step: The last step that was done.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
