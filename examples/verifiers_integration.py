"""ALFWorld in a verifiers rollout, and a verifiers environment as a Tacit world: pip install 'tacit-agents[verifiers]'.
Replace `Echo` with a real client (vf.ClientConfig(...))."""

import asyncio

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage

from tacit.integrations.verifiers import TacitMultiTurnEnv, verifiers_environment


class Echo(Client):
    """A model that always gives the same answer."""

    def setup_client(self, config): ...
    async def to_native_tool(self, tool): ...
    async def raise_from_native_response(self, response): ...
    async def close(self): ...

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **more):
        print(prompt[-1].content[-160:], "\n---")
        return "<think>hm</think><action>look</action>"

    async def from_native_response(self, text):
        message = ResponseMessage(role="assistant", content=text, finish_reason="stop", is_truncated=False)
        return Response(id="1", created=0, model="echo", message=message)


env = TacitMultiTurnEnv("alfworld", tasks=10, max_steps=3)
row = {**env.get_dataset()[0], "example_id": 0}
output = asyncio.run(env.run_rollout(row, Echo(None), "echo", {}))
print("reward in verifiers' rollout:", output["reward"], "after", int(output["metrics"]["turns"]), "turns")


def make_environment():
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "What is 6 times 7?"}], "answer": "42"}])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[lambda completion, answer: float(answer in str(completion))]))


QUESTION = verifiers_environment("question", make_environment)  # tacit train --world verifiers_integration.py:QUESTION …
world = QUESTION.make()
world.reset(QUESTION.tasks("train", 1, 0)[0])
print("won here:", world.step("It is 42.").success)
