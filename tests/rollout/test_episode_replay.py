"""A replayed episode has the same prompts as its rollout, from a live world or from the record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import ScriptedPolicy
from scripted import Words as Tokens
from small_worlds import Corridor, Signs, corridor

from tacit.core.protocols import Sampling
from tacit.core.types import Condition, StopReason
from tacit.prompts.history import History, StateBlock
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import PromptRenderer, ReplayMismatch, iterate_trajectory, play_episode, render_turns, replay_actions
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

CONTEXT = History(Signs(), turns=2, style="bare")
NOTE = Condition("guided", "Keep left.")


class Again:
    def __init__(self, actions):
        self._actions = iter(actions)

    def act(self, observation):
        return next(self._actions)


def walked(length=5, answer=lambda prompt, seed: "back" if seed % 3 == 0 else "forward"):
    policy, plan = ScriptedPolicy(answer), EpisodePlan(corridor(length), 11, NOTE)
    (played,) = rollout([plan], CONTEXT, InProcessPool(Corridor), policy, Sampling(max_tokens=4), 12)
    return played


@pytest.mark.parametrize("name", ["countdown", "alfworld", "cooking", "searchqa"])
@pytest.mark.parametrize("kind", ["history", "state block"])
def test_replayed_prompts_equal_those_of_the_rollout(name, kind):
    """In each world and both contexts, along expert episodes: played live, replayed, and from the record."""
    world = get_environment(name)
    wording = world.wording("terse")
    context = History(wording, 2, False, "bare") if kind == "history" else StateBlock(wording, world.tracker)
    (task,) = world.tasks("train", 1, 4)
    actions = [h.action for h in play_episode(world.make(), task, world.expert()(task), world.max_steps)]
    plan, todo = EpisodePlan(task, 0, NOTE), iter(actions)
    policy = ScriptedPolicy(lambda prompt, seed: next(todo))
    (played,) = rollout([plan], context, InProcessPool(world.make), policy, Sampling(), world.max_steps)
    assert played.success and len(played) == len(actions) > 1
    seen = [*(s.observation.text for s in played.steps), played.final.text]
    for course in (
        play_episode(world.make(), task, world.expert()(task), world.max_steps),
        replay_actions(world.make(), task, actions, seen),
        iterate_trajectory(played),
    ):
        turns = list(render_turns(context, task, course, NOTE))
        assert [t.prompt for t in turns] == [s.prompt for s in played.steps]
        assert [(t.observation.text, t.action) for t in turns] == [(s.observation.text, s.action) for s in played.steps]
        assert [dict(t.signals) for t in turns] == [dict(s.signals) for s in played.steps]
        assert turns[-1].transition.success and turns[-1].transition.done and turns[-1].transition.score == played.score


def test_rendered_turns_are_truncated_to_leave_room():
    played = walked()
    whole = [t.tokens for t in render_turns(CONTEXT, played.task, iterate_trajectory(played), NOTE, Tokens())]
    limit = max(map(len, whole)) + 2
    cut = list(render_turns(CONTEXT, played.task, iterate_trajectory(played), NOTE, Tokens(limit), room=4))
    assert all(t.fits for t in cut) and any(len(t.tokens) < len(w) for t, w in zip(cut, whole, strict=True))
    assert all(len(t.tokens) + 4 <= limit for t in cut)
    tight = list(render_turns(CONTEXT, played.task, iterate_trajectory(played), NOTE, Tokens(4), room=4))
    assert not any(t.fits for t in tight)
    bare = next(render_turns(CONTEXT, played.task, iterate_trajectory(played), NOTE))
    assert len(bare.tokens) == 0 and bare.fits, "tokens were not requested"


def test_recorded_trajectory_keeps_how_the_episode_ended():
    (*_, last) = iterate_trajectory(walked(3, answer=lambda prompt, seed: "jump"))
    assert last.transition.done and not last.transition.success and last.transition.label == "fell"
    (*_, last) = iterate_trajectory(walked(99, answer=lambda prompt, seed: "forward"))
    assert not last.transition.done, "the limit of steps ended it, not the world"


def test_play_episode_acts_lazily():
    texts = []

    class RecordingWorld:
        def act(self, observation):
            texts.append(observation.text)
            return "forward"

    turns = render_turns(CONTEXT, corridor(9), play_episode(Corridor(), corridor(9), RecordingWorld(), 7))
    assert texts == []
    next(turns)
    assert texts == ["place 0 of 9"]
    assert len(list(turns)) == 6 and len(texts) == 7, "at most `limit` turns"


def test_replay_raises_when_observations_differ():
    played = walked()
    actions, seen = [s.action for s in played.steps], [s.observation.text for s in played.steps]
    assert len(list(replay_actions(Corridor(), played.task, actions, seen))) == len(played)
    seen[2] = "place 77 of 5"
    with pytest.raises(ReplayMismatch, match=r"turn 3 of the recorded episode .* the recording has 'place 77 of 5'") as caught:
        list(replay_actions(Corridor(), played.task, actions, seen))
    assert caught.value.turn == 3
    seen[2:] = [*(s.observation.text for s in played.steps[2:]), "elsewhere"]
    with pytest.raises(ReplayMismatch, match=rf"turn {len(played) + 1} of the recorded episode"):
        list(replay_actions(Corridor(), played.task, actions, seen))


def test_episode_without_turns_renders_no_turns():
    played = replace(walked(), steps=(), stop=StopReason.WORLD_ERROR)
    assert list(render_turns(CONTEXT, played.task, iterate_trajectory(played))) == []
    assert list(replay_actions(Corridor(), played.task, [], ["place 0 of 5"])) == []


def test_prompt_renderer_step_by_step():
    task, tokens = corridor(2), Tokens()
    world, renderer = Corridor(), PromptRenderer(CONTEXT, task, NOTE)
    observation = world.reset(task)
    prompt, read, fits = renderer.render(observation, tokens, 4)
    assert tokens.decode(read) == prompt.text == "walk 2\n<note>\nKeep left.\n</note>\nplace 0 of 2\n?" and fits
    assert renderer.record("forward", world.step("forward")) == {} and renderer.turns == 1
    assert renderer.render(observation)[0].history == ("1 place 0 of 2 then forward",)
