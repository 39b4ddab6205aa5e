"""User files that import neighbouring files, and the copies that a run makes of them."""

import importlib
import sys
from pathlib import Path

import pytest

from mindspore_rl import programs
from mindspore_rl.environments import registry as by_name
from mindspore_rl.environments.gym import library as gym_library
from mindspore_rl.errors import EnvironmentFailure, MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.platform import former_names, user_modules

ROOT = Path(__file__).parents[1]
EARLIER: dict[str, str] = {}


def write(folder: Path, **files: str) -> Path:
    """Writes modules; `nets_` is the folder nets as a package, `nets_torso` a file in it."""
    for name, text in files.items():
        place = name.replace("_", "/")
        file = folder / f"{place}__init__.py" if place.endswith("/") else folder / f"{place}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def load(file: Path) -> dict:
    return vars(user_modules.load_module(file))


def test_each_folder_has_its_own_siblings(tmp_path):
    for number in ("1", "2"):
        folder = write(tmp_path / number, it="from parts import value", parts=f"value = {number}")
        assert load(folder / "it.py")["value"] == int(number)
    assert "parts" not in sys.modules


def test_every_form_of_import_finds_siblings(tmp_path):
    write(
        tmp_path,
        it="import parts, nets.torso, nets.torso as torso, os.path\n"
        "from nets import torso as other\n"
        "from nets.torso import value\n"
        "from .parts import value as relative\n"
        "from . import parts as again\n"
        "def later():\n"
        "    from late import value\n"
        "    return value\n",
        parts="from nets.torso import value",
        late="value = 7",
        nets_="",
        nets_torso="import parts\nfrom . import heads\nvalue = heads.value",
        nets_heads="value = 3",
    )
    found = load(tmp_path / "it.py")
    assert found["parts"] is found["again"]
    assert found["nets"].torso is found["torso"] is found["other"]
    assert (found["value"], found["relative"], found["later"]()) == (3, 3, 7)
    assert found["os"].path.sep == "/"


def test_a_file_that_was_changed_is_imported_again(tmp_path):
    """A module that imports it is imported again too; an equal copy of a run is not."""
    text = "from parts import value"
    file = write(tmp_path, it=text, other=text, parts="value = 1") / "it.py"
    package = user_modules.package_of(file)
    first = user_modules.load_module(file)
    write(tmp_path, parts="value = 2")  # same size, same second
    assert load(tmp_path / "other.py")["value"] == 2
    second = user_modules.load_module(file)
    assert (first.value, second.value) == (1, 2)
    copy = user_modules.keep(file, tmp_path / "run")
    assert user_modules.load_module(copy, package) is second
    write(tmp_path, parts="value = 3")
    assert user_modules.load_module(copy, package) is second
    assert load(file)["value"] == 3
    assert user_modules.load_module(copy, package).value == 2


def test_names_of_packages_stay_theirs(tmp_path):
    """A file is not its own neighbour, and no file replaces this project."""
    write(tmp_path, gym="import gym\nfrom mindspore_rl import api")
    (tmp_path / "mindspore_rl").mkdir()
    (tmp_path / "mindspore_rl" / "__init__.py").write_text("")
    assert hasattr(load(tmp_path / "gym.py")["gym"], "make")


def test_a_file_of_any_name_is_loaded(tmp_path):
    write(tmp_path, **{"my-own.1": "value = 1", "class": "value = 2"})
    for name, value in (("my-own.1", 1), ("class", 2)):
        module = user_modules.load_module(tmp_path / f"{name}.py")
        assert module.value == value
        assert module.__name__.rpartition(".")[2].isidentifier()


def test_a_failing_sibling_is_named(tmp_path):
    write(tmp_path, it="import parts", parts="\n\n1 / 0", odd="import nowhere_at_all")
    with pytest.raises(MsrlError, match=r"parts\.py:3: cannot be imported: ZeroDivision"):
        programs.trainer_class(tmp_path / "it.py")
    write(tmp_path, ends="import sys\nsys.exit(0)")
    with pytest.raises(MsrlError, match=r"ends\.py:2: cannot be imported: SystemExit: 0"):
        programs.trainer_class(tmp_path / "ends.py")
    with pytest.raises(MsrlError, match=r"odd\.py:1: cannot be imported: .*nowhere_at_all"):
        registry.load_policy(tmp_path / "odd.py")
    with pytest.raises(EnvironmentFailure, match=r"parts\.py:3: cannot be imported: Zero"):
        by_name.spec(f"{tmp_path / 'it.py'}:Env")


def test_an_error_without_a_text_is_told(tmp_path):
    file = tmp_path / "silent.py"
    silent = "class Silent(Exception):\n    def __str__(self):\n        raise RuntimeError\n"
    file.write_text(f"{silent}raise Silent\n")
    with pytest.raises(MsrlError, match=r"silent.py:4: cannot be imported: Silent: its text"):
        user_modules.load_module(file)


def test_what_is_imported_is_kept_and_nothing_else(tmp_path):
    here = write(
        tmp_path / "here", it="import os\ndef f():\n    from parts import x",
        parts="from .deep import y\nfrom nets import z", deep="", other="",
        nets_="from nets.a import z", nets_a="from ..more import z", more="",
    )  # fmt: skip
    kept = user_modules.keep(here / "it.py", tmp_path / user_modules.FOLDER)
    assert kept == tmp_path / "program" / "it.py"
    found = {str(file.relative_to(kept.parent)) for file in kept.parent.rglob("*.py")}
    assert found == {"it.py", "parts.py", "deep.py", "more.py", "nets/__init__.py", "nets/a.py"}


def test_a_copy_has_the_files_that_a_string_names(tmp_path):
    """Files in the same folder only, and no others."""
    (tmp_path / "secret.txt").write_text("not beside it")
    folder = write(
        tmp_path / "mine",
        it="from pathlib import Path\nfrom nets import world\n"
        "text = (Path(__file__).parent / 'maps/small.txt').read_text()\n"
        "other = '../secret.txt'\n"
        "no_name = '\\ud800'\n",
        nets_="",
        nets_world="MAP = 'world.csv'",
    )
    (folder / "maps").mkdir()
    (folder / "maps" / "small.txt").write_text("##")
    (folder / "maps" / "large.txt").write_text("####")
    (folder / "nets" / "world.csv").write_text("1,2")
    kept = user_modules.keep(folder / "it.py", tmp_path / "run")
    files = {str(f.relative_to(tmp_path / "run")) for f in (tmp_path / "run").rglob("*.*")}
    assert files == {
        "it.py", "maps/small.txt", "nets/__init__.py", "nets/world.py", "nets/world.csv",
    }  # fmt: skip
    assert load(kept)["text"] == "##"
    assert user_modules.unchanged(folder / "it.py", tmp_path / "run") == folder / "it.py"
    (folder / "maps" / "small.txt").write_text("#")
    assert user_modules.unchanged(folder / "it.py", tmp_path / "run") == kept


@pytest.mark.parametrize("former", former_names.MOVED)
def test_files_that_name_a_module_as_it_was_called_still_load(former):
    now = importlib.import_module(f"mindspore_rl.{former_names.MOVED[former]}")
    assert importlib.import_module(f"mindspore_rl.{former}") is now


@pytest.mark.parametrize(
    ("then", "library", "now"),
    [
        ("CartPole-v1", EARLIER, "gym:CartPole-v1"),
        ("CartPole-v1,render_mode=human", EARLIER, "gym:CartPole-v1,render_mode=human"),
        ("CartPole", EARLIER, "gym:CartPole"),  # the newest
        ("CartPole-v1", {"library": "gymnasium"}, "CartPole-v1"),
        ("LunarLander-v2", EARLIER, "gym:LunarLander-v2"),
        ("LunarLander-v3", EARLIER, "LunarLander-v3"),  # gymnasium's
        ("Taxi-v3", EARLIER, "gym:Taxi-v3,action_mask=false"),
        ("gymnasium:Taxi-v3", EARLIER, "gymnasium:Taxi-v3,action_mask=false"),
        ("Taxi-v4", {"library": "gymnasium"}, "Taxi-v4,action_mask=false"),
        ("Taxi-v4", {"library": "gymnasium", "action_mask": True}, "Taxi-v4"),
        ("gymnasium:CartPole-v1", EARLIER, "gymnasium:CartPole-v1"),
        ("graph:CartPole-v1", EARLIER, "graph:CartPole-v1"),
        ("/here/own.py:Own", EARLIER, "/here/own.py:Own"),
    ],
)
def test_a_plain_id_of_an_earlier_version_is_gyms(then, library, now):
    assert user_modules.as_recorded({"environment": then, **library}) == now


def test_gyms_environments_are_those_of_its_registry():
    found = gym_library.load("gym").envs.registration.registry.values()
    own = {spec.id for spec in found if str(spec.entry_point).startswith("gym.envs.")}
    known = user_modules.GYMS.items()
    assert {f"{name}-v{version}" for name, versions in known for version in versions} == own
