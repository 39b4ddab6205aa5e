"""The picture of a partitioned algorithm shows every fragment, and the messages as sent."""

import re
from xml.etree import ElementTree

import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.compiler.show.picture import NAME, with_times
from mindspore_rl.jobs.registry import policies
from tests.tiers import quick


@pytest.mark.parametrize("policy", quick(sorted(policies()), 0, 5))
def test_every_arrow_has_two_ends(policy, capsys):
    command = ["graph", "ppo", "--policy", policy, "--workers", "2"]
    assert cli.main([*command, "--format", "mermaid"]) == 0
    picture = capsys.readouterr().out
    made = set(re.findall(r"^    (\w+)\[", picture, re.M))
    arrows = re.findall(r"^ +(\w+) (?:-->|== .* ==>) (\w+)$", picture, re.M)
    assert {end for pair in arrows for end in pair} <= made
    assert picture.count("subgraph ") == picture.count("style ") == picture.count("  end\n")
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    sent = re.findall(r"(\d[\d,]* calls?, [\d,]+ bytes)$", text, re.M)
    assert sorted(re.findall(r"[\d,]+ calls?, [\d,]+ bytes", picture)) == sorted(sent)


def test_a_message_is_drawn_from_what_makes_it_to_what_needs_it(capsys):
    job = ("--policy", "SingleLearnerFine", "--workers", "2")
    cli.main(["graph", "ppo", *job, "--format", "mermaid"])
    picture = capsys.readouterr().out
    assert (
        'environment_env_reset_1 == "observation: 2 calls, 128 bytes" ==> learner_agent' in picture
    )
    assert 'learner_agent_act_1 == "action: 256 calls' in picture
    assert "learner_replay_insert_1 --> learner_replay_sample_1" in picture
    assert "environment_env_step_1 --> learner" not in picture


def test_lines_have_the_colours_of_the_fragments_that_run_them(capsys):
    job = ("--policy", "SingleLearnerFine", "--workers", "2")
    assert cli.main(["graph", "ppo", *job, "--format", "svg"]) == 0
    svg = "{http://www.w3.org/2000/svg}"
    drawing = ElementTree.fromstring(capsys.readouterr().out)
    grounds = {float(r.get("y")): r.get("class") for r in drawing.iter(f"{svg}rect")}
    colours = {t.text: grounds.get(float(t.get("y")) - 14) for t in drawing.iter(f"{svg}text")}
    found = {text: colour for text, colour in colours.items() if "msrl." in text}
    assert found.pop("obs = msrl.env_reset()") == "f0"
    assert {v for text, v in found.items() if text.startswith("next_obs, ")} == {"f0"}
    assert {v for text, v in found.items() if text.startswith("for ")} == {None}
    rest = {v for text, v in found.items() if not text.startswith(("next_obs, ", "for "))}
    assert rest == {"f1"}
    assert "observation: 256 calls, 38,912 bytes" in colours
    assert len(list(drawing.iter(f"{svg}path"))) == 4  # an arrow for each message, and their tip


@pytest.mark.slow
def test_an_algorithm_without_lines_of_its_own_is_refused(tmp_path, refused):
    file = tmp_path / "derived.py"
    lines = ("from algorithms import ppo", "", "Config = ppo.Config", "", "")
    file.write_text("\n".join((*lines, "class Derived(ppo.PPOTrainer):", "    pass", "")))
    assert "derived.py has no line with an operation" in refused("graph", file, "--format", "svg")


def test_times_are_written_beside_messages(capsys):
    job = ("--policy", "SingleLearnerFine", "--workers", "2")
    assert cli.main(["graph", "ppo", *job, "--format", "svg"]) == 0
    drawn = capsys.readouterr().out
    texts = _messages(drawn)
    assert len(texts) == 3
    name = next(name for name, text in texts.items() if text.startswith("action"))
    timed = _messages(with_times(drawn, {name: 1.23456, "none": 1.0}))
    assert timed == {**texts, name: f"{texts[name]}, 1.23 ms"}


def _messages(drawn):
    texts = [element for element in ElementTree.fromstring(drawn).iter() if element.get(NAME)]
    return {element.get(NAME): element.text for element in texts}
