"""Finds the models of a start, or refuses it with everything that is wrong with its declaration."""

from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel
from cli.stack.fleet.find import find_models
from cli.stack.fleet.remote_models import own_models
from cli.stack.machine import examine, is_null
from cli.stack.machine_facts import machine_facts
from cli.stack.memory_needs import MachineFacts
from cli.stack.options import UpOptions
from shared.host.freed_memory import return_freed_memory


def checked_models(
    options: UpOptions, declared: Declaration, *, pull: bool | None, machine: MachineFacts | None = None
) -> tuple[FoundModel, ...]:
    """Return the models that were declared; those that are not here are fetched.

    Args:
        pull: Whether a model that is not here is fetched; None: if there is a terminal.
        machine: Where it is to run; None: this machine.

    Raises:
        CommandError: All problems of the declaration, each with its line.
    """
    models = find_models(declared, options.engine, pull=pull)
    # without kernels weights would count as fp32, and `ryz up` compiles kernels only if all is right
    machine = machine or machine_facts(options)
    can_measure, own = options.kernels == "plain" or machine.kernels, own_models(models)
    if declared.has_problems and can_measure and not is_null(options, own):
        examine(options, own, machine, declared)
    declared.refuse_problems()
    return_freed_memory()  # of tokenizers and tensors, which were read only to be checked
    return models
