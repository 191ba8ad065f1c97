"""Narrowing an engine's recipe to the kind its adapter serves."""

from typing import TypeVar

from pytest_qperf.core.artifacts import NamedEngine
from pytest_qperf.core.recipe import EngineBase

Kind = TypeVar("Kind", bound=EngineBase)


def recipe_as(engine: NamedEngine, kind: type[Kind]) -> Kind:
    """Return the recipe as ``kind``; raises TypeError if it is of another kind."""
    recipe: object = engine.recipe
    if not isinstance(recipe, kind):
        raise TypeError(
            f"engine {engine.name}: expected a {kind.__name__}, got a {type(recipe).__name__}"
        )
    return recipe
