"""A taskset of verifiers: two letters follow one another, and each has a partner.

It runs in the Python that has verifiers. Its harness is a conversation in the worker itself.
"""

import asyncio
import os

import httpx
import verifiers.v1 as vf

PARTNERS = {"a": "0", "b": "3", "c": "1", "d": "2"}

__all__ = ["PartnersHarness", "PartnersTaskset"]


class PartnersData(vf.TaskData):
    letters: str


class PartnersTask(vf.Task[PartnersData]):
    @vf.reward(weight=1.0)
    async def named(self, trace: vf.Trace) -> float:
        answers = [node.message.content for node in trace.nodes if node.sampled]
        expected = [PARTNERS[letter] for letter in self.data.letters]
        return sum(a == b for a, b in zip(answers, expected, strict=False)) / len(expected)


class PartnersConfig(vf.TasksetConfig):
    mood: str = "good"  # behaviour of the harness


class PartnersTaskset(vf.Taskset[PartnersTask, PartnersConfig]):
    def load(self) -> list[PartnersTask]:
        pairs = ["ab", "bc", "cd", "da"] * 2
        return [
            PartnersTask(PartnersData(prompt=pair[0], letters=pair, name=self.config.mood))
            for pair in pairs
        ]


class PartnersHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ):
        if data.name == "dead" and data.idx == 1:
            os._exit(3)
        if data.name == "raises" and data.idx == 1:
            raise RuntimeError("no letters")
        if data.name == "endless" and data.idx == 1:
            await asyncio.sleep(600)
        messages = []
        async with httpx.AsyncClient(timeout=600) as client:
            for letter in data.letters:
                if data.name == "forgets":
                    messages = []
                messages.append({"role": "user", "content": letter})
                answer = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": messages},
                    headers={"Authorization": f"Bearer {secret}"},
                )
                if answer.status_code != 200:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=answer.text)
                [choice] = answer.json()["choices"]
                messages.append(choice["message"])
                if data.name == "strict" and choice["finish_reason"] == "length":
                    break
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
