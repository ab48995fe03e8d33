"""A grammar for JSON that another engine has begun, in our form of it or in that engine's."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    TokenConstraint,
    TokenRefused,
)


@dataclass(frozen=True, slots=True)
class ReplayedGrammar:
    """Both forms. A call makes the constraint of an answer that begins here.

    Attributes:
        own: White space and the order of keys as we fix them.
        servers: As engines of others have them.
    """

    own: ConstraintFactory
    servers: ConstraintFactory

    def __call__(self) -> TokenConstraint:
        """Returns a constraint at the beginning of an answer."""
        return self.own()

    def behind(self, token_ids: Sequence[int]) -> TokenConstraint:
        """Returns a constraint behind the tokens of an answer, in our form if they have it.

        Raises:
            ConstraintFailed: They have neither.
        """
        constraint = self.own()
        try:
            constraint.accept(token_ids)
        except TokenRefused:
            constraint = self.servers()
            constraint.accept(token_ids)
        return constraint
