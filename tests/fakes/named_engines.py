"""Engine recipes with their names, and a progress line that remembers, for the adapters' tests."""

from pathlib import Path

from pytest_qperf.core.artifacts import NamedEngine
from pytest_qperf.core.recipe import EngineRecipe


class RecordedProgress:
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.updates: list[str] = []
        self.notes: list[str] = []

    def update(self, text: str) -> None:
        self.updates.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def named_engine(
    recipe: EngineRecipe, *, recipes_root: Path = Path("engine_recipes")
) -> NamedEngine:
    return NamedEngine(
        name="arm-under-test", recipe=recipe, recipes_root=recipes_root, digest=recipe.digest()
    )
