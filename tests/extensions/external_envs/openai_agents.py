"""Agent of the OpenAI Agents SDK, which uses the Responses interface."""

from agents import Agent, ModelBehaviorError, OpenAIResponsesModel, RunConfig, Runner
from blackbox_agents import PARTNERS, client

import fieldcraft as fc


async def partners(task: fc.Task, base_url: str) -> float:
    """Ask about successive letters. An answer is correct if it starts with the letter's partner."""
    async with client(base_url) as api:
        agent = Agent(name="guesser", model=OpenAIResponsesModel("policy", api))
        history, right = [], 0
        for letter in task.question:
            asked = [*history, {"role": "user", "content": letter}]
            try:
                done = await Runner.run(agent, asked, run_config=RunConfig(tracing_disabled=True))
            except ModelBehaviorError:
                break
            history = done.to_input_list()
            right += done.final_output.startswith(PARTNERS[letter])
    return right / len(task.question)
