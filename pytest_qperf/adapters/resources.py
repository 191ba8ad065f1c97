"""Where the recipes and plugin sources are: inside an installed wheel, or in a source checkout."""

from pathlib import Path

from pytest_qperf.core.artifacts import NamedEngine
from pytest_qperf.core.errors import RecipeError

PACKAGE_DIR = Path(__file__).resolve().parent.parent


def packaged_recipes_root(package_dir: Path = PACKAGE_DIR) -> Path:
    """Return the ``engine_recipes`` folder that belongs to this package.

    An installed wheel carries it in ``_data``; in a source checkout it lies beside the package.
    Raises RecipeError if there is none.
    """
    places = (package_dir / "_data" / "engine_recipes", package_dir.parent / "engine_recipes")
    for place in places:
        if place.is_dir():
            return place
    raise RecipeError(
        [
            f"packaged recipes: expected a folder at {places[0]} or {places[1]}, got none; "
            f"install pytest-qperf again"
        ]
    )


def plugin_source_dir(engine: NamedEngine, package_dir: Path = PACKAGE_DIR) -> Path:
    """Return the folder of an engine's plugin sources.

    Looked up beside the engine's recipes folder first, then beside the packaged one.
    Raises RecipeError if the recipe names no plugin, or neither place has the folder.
    """
    plugin_source: str | None = getattr(engine.recipe, "plugin_source", None)
    if plugin_source is None:
        raise RecipeError(
            [f"engine {engine.name}: plugin_source: expected a plugin's folder, got none; add it"]
        )
    roots = (engine.recipes_root, packaged_recipes_root(package_dir))
    places = dict.fromkeys(root.parent / plugin_source for root in roots)
    for place in places:
        if place.is_dir():
            return place
    raise RecipeError(
        [
            f"engine {engine.name}: plugin_source: expected a folder, "
            f"got none at {' or '.join(map(str, places))}; paths start beside the recipes folder"
        ]
    )
