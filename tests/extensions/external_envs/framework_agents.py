"""Agent of Pydantic AI over the Responses interface."""

from blackbox_agents import PARTNERS, client
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import fieldcraft as fc


async def answers_by_responses(task: fc.Task, base_url: str) -> float:
    """Ask about successive letters. An answer is correct if it starts with the letter's partner."""
    async with client(base_url) as api:
        model = OpenAIResponsesModel("policy", provider=OpenAIProvider(openai_client=api))
        agent, history, right = Agent(model), [], 0
        for letter in task.question:
            try:
                done = await agent.run(letter, message_history=history)
            except AgentRunError:  # the framework rejects an empty answer
                break
            history = done.all_messages()
            right += done.output.startswith(PARTNERS[letter])
    return right / len(task.question)
