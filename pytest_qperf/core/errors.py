"""One exception tree; one class for each reaction a caller can have.

Message shape, everywhere: ``where: expected X, got Y; how to fix``.
"""


class QperfError(Exception):
    """Base of every error this project raises on purpose."""


class RecipeError(QperfError):
    """A recipe, an option or a checkpoint description is wrong: mend the input and run again.

    ``problems`` holds every problem found, one line each, ``file:line:column: path: message``.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class BuildError(QperfError):
    """An artefact (plugin library, checkpoint, engine) could not be built."""


class EngineError(QperfError):
    """An engine did not start, died, or is not the engine its recipe states."""


class EnvironmentUnfitError(QperfError):
    """This host cannot measure now: no such GPU, strangers on it, memory not returned."""


class LoadError(QperfError):
    """The load could not be generated at all (not: a request failed, which makes a run invalid)."""


class ResultError(QperfError):
    """A stored result is missing, unreadable, or belongs to another gate."""
