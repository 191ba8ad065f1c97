"""Recipes and plugin sources are found in a wheel and in a checkout, or the places are named."""

from pathlib import Path

import pytest

from pytest_qperf.adapters.resources import packaged_recipes_root, plugin_source_dir
from pytest_qperf.core.artifacts import NamedEngine
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import EmbeddedEngine, EndpointEngine, EngineRecipe


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package folder with recipes beside it, as in a checkout."""
    (tmp_path / "engine_recipes").mkdir()
    (tmp_path / "package").mkdir()
    return tmp_path / "package"


def engine(recipe: EngineRecipe, recipes_root: Path) -> NamedEngine:
    return NamedEngine(name="e", recipe=recipe, recipes_root=recipes_root, digest="0")


def with_plugin(recipes_root: Path) -> NamedEngine:
    recipe = EmbeddedEngine(
        description="x", kind="embedded", model="m", precision="fp8", plugin_source="plugins/p"
    )
    return engine(recipe, recipes_root)


def test_a_checkout_has_its_recipes_beside_the_package(package: Path) -> None:
    assert packaged_recipes_root(package) == package.parent / "engine_recipes"


def test_a_wheel_has_its_recipes_inside_the_package(package: Path) -> None:
    inside = package / "_data" / "engine_recipes"
    inside.mkdir(parents=True)
    assert packaged_recipes_root(package) == inside


def test_recipes_in_neither_place_are_an_error_that_names_both(tmp_path: Path) -> None:
    package = tmp_path / "package"
    with pytest.raises(RecipeError) as caught:
        packaged_recipes_root(package)
    assert str(caught.value) == (
        f"packaged recipes: expected a folder at {package}/_data/engine_recipes or "
        f"{tmp_path}/engine_recipes, got none; install pytest-qperf again"
    )


def test_plugin_sources_beside_the_recipes_come_first(package: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for folder in (mine, package.parent):
        (folder / "plugins" / "p").mkdir(parents=True)
    found = plugin_source_dir(with_plugin(mine / "engine_recipes"), package)
    assert found == mine / "plugins" / "p"


def test_plugin_sources_are_borrowed_from_the_package(package: Path, tmp_path: Path) -> None:
    (package.parent / "plugins" / "p").mkdir(parents=True)
    found = plugin_source_dir(with_plugin(tmp_path / "mine" / "engine_recipes"), package)
    assert found == package.parent / "plugins" / "p"


def test_missing_plugin_sources_are_an_error_that_names_both_places(
    package: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        plugin_source_dir(with_plugin(tmp_path / "mine" / "engine_recipes"), package)
    assert str(caught.value) == (
        f"engine e: plugin_source: expected a folder, got none at {tmp_path}/mine/plugins/p or "
        f"{tmp_path}/plugins/p; paths start beside the recipes folder"
    )


def test_an_engine_without_a_plugin_has_no_plugin_sources(package: Path) -> None:
    endpoint = EndpointEngine(
        description="x", kind="endpoint", model="m", base_url="http://localhost"
    )
    with pytest.raises(RecipeError) as caught:
        plugin_source_dir(engine(endpoint, package), package)
    assert str(caught.value) == (
        "engine e: plugin_source: expected a plugin's folder, got none; add it"
    )
