"""From logs to a draft that holds: ask, show, have it agreed to, examine, and ask again with what failed.

Nothing of a draft is run before `agreed` was asked, and it is asked of every draft anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.companions.answers import Answer, Answers, key_of
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Prompt
from tacit.modules.drafting.asking import as_conversation, draft_in
from tacit.modules.drafting.checks import Examination, Failure, examine
from tacit.modules.drafting.fence import read_only
from tacit.modules.drafting.following import Draft
from tacit.modules.drafting.rewarded import Fields
from tacit.rollout.desks import open_desk
from tacit.rollout.episodes import SamplingPolicy
from tacit.rollout.fitting import encode, fit
from tacit.runs.files import write_json, write_text
from tacit.training.recordings import Recording

TOLD = 12
"""failures that a model is told of"""


@dataclass(frozen=True)
class Drafted:
    text: str
    examination: Examination | None
    """None where nobody agreed that it be run"""


def pursue(
    ask: Callable[[str, str, int], str],
    attempts: int,
    episodes: Sequence[Recording],
    show: Callable[[str, int], None],
    agreed: Callable[[], bool],
    report: Callable[[Examination], None],
    beside: Sequence[str] = (),
    blocks: Mapping[Recording, Sequence[Fields]] | None = None,
) -> Drafted:
    """`ask(the last draft, what was wrong with it, attempt)` writes a draft. `beside`: what stands before it, such as the
    tracker that rewards are for; `blocks`: those of the world's own tracker that they are for. Ends with one that holds, with
    the last, or with one that nobody wants to run."""
    text = failed = ""
    for attempt in range(attempts):
        text = ask(text, failed, attempt)
        show(text, attempt)
        if reasons := read_only(text):
            found = Examination(failures=[Failure("reads", reason) for reason in reasons], reached="reads")
        elif not agreed():
            return Drafted(text, None)
        else:
            found = examine(Draft([*beside, text], blocks=blocks), episodes)
        report(found)
        if found.passed:
            break
        failed = "\n".join(f"- {failure}" for failure in found.failures[:TOLD])
    return Drafted(text, found)


class Drafter:
    """A model that is asked; every answer is kept, and nothing is asked twice."""

    def __init__(self, policy: SamplingPolicy, kept: Path, max_tokens: int, temperature: float) -> None:
        self._policy, self._answers = policy, Answers(kept)
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)

    def write(self, prompt: Prompt, attempt: int) -> str:
        policy, room = self._policy, self._sampling.max_tokens
        who = getattr(policy, "identity", None) or policy.digest()  # type: ignore[attr-defined]
        key = key_of(who, self._sampling.temperature, room, prompt.text, attempt)
        if key not in self._answers:
            prompt, tokens, fits = fit(prompt, policy, room)
            if not fits:
                raise TacitError(
                    f"the question has {len(tokens)} tokens, and {room} more for the answer do not fit in the model's "
                    f"{policy.context_limit}; show fewer episodes (--shown) or lower --max-tokens."
                )
            with suppress(TacitError):  # a model without a template reads it as it stands
                tokens = encode(as_conversation(prompt), policy)
            with closing(open_desk(policy, self._sampling, None)) as desk:
                desk.submit(Request(tokens, attempt))
                completion = next(done for _, done in desk.wait())
            if completion.finish == "unusable":
                reasons = getattr(policy, "broken", None) or ["no answer came"]
                raise TacitError(f"the model gave no draft: {reasons[-1]}")
            self._answers.add(key, Answer(completion.text, completion.read or len(tokens), len(completion.tokens)))
        return draft_in(self._answers[key].text)


def keep(out: Path, name: str, kind: str, drafted: Drafted, world: str = "", tracker: str = "", block: str = "") -> list[Path]:
    """Write what came of it: a draft that holds under its name, with a file that makes it a world; any other as `.refused`.
    `kind` is `tracker` or `rewards`; rewards are for the file `tracker`, or for the world's own `block`."""
    out.mkdir(parents=True, exist_ok=True)
    found = drafted.examination
    report = out / f"{name}_{kind}_checks.json"
    if found is not None:
        write_json(report, found.to_json())
    if found is None or not found.passed:
        place = out / f"{name}_{kind}.py.refused"
        write_text(place, drafted.text)
        return [place, *([report] if found else [])]
    place, work = out / f"{name}_{kind}.py", out / f"{name}_work.py"
    write_text(place, drafted.text)
    own = {"rewards": place.name, "world": world, "block": block} if kind == "rewards" else {"world": world}
    first = repr(place.name if kind == "tracker" else tracker)
    more = ", ".join([first, "beside=__file__", *(f"{name}={value!r}" for name, value in own.items() if value)])
    write_text(
        work,
        f'"""Work with a drafted tracker: --world {work.name}:ENVIRONMENT."""\n\n'
        f"from tacit.modules.work import work_of\n\nENVIRONMENT = work_of({more})\n",
    )
    return [place, work, report]
