"""The picture of a partitioned algorithm shows every fragment, and the messages as sent."""

import re

import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.jobs.registry import policies


@pytest.mark.parametrize("policy", policies())
def test_every_arrow_has_two_ends(policy, capsys):
    command = ["graph", "ppo", "--policy", policy, "--workers", "2", "--env", "CartPole-v1"]
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
    job = ("--policy", "SingleLearnerFine", "--workers", "2", "--env", "CartPole-v1")
    cli.main(["graph", "ppo", *job, "--format", "mermaid"])
    picture = capsys.readouterr().out
    assert (
        'environment_env_reset_1 == "observation: 2 calls, 128 bytes" ==> learner_agent' in picture
    )
    assert 'learner_agent_act_1 == "action: 256 calls' in picture
    assert "learner_replay_insert_1 --> learner_replay_sample_1" in picture
    assert "environment_env_step_1 --> learner" not in picture
