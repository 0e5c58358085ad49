"""A policy of 114,000 weights that knows the calls of a shell, and a task that it solves at times.

The folder has two files, and the question names one. The reward is 1 if `answer.txt` is a copy of
this file and the agent was ended by the command that submits.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from checkpoints import CHAT_TEMPLATE
from fieldcraft.config.sections import BudgetConfig, Optim
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.conversations import AgentConversation
from fieldcraft.extensions.external_envs.messages import TurnRequest
from fieldcraft.extensions.sandbox import landlock
from fieldcraft.train.saving import save_model
from fieldcraft.train.stages.sft import SftStage
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Task, Trajectory
from source_files import lines
from training_parts import step

HERE = Path(__file__).parent
FILES = {"fruit": "plum", "metal": "zinc"}
QUESTIONS = ("Copy the file {} to answer.txt.", "To answer.txt copy the file {} now.")
RIGHT, *WRONG = "cp {} answer.txt", "cat {}", "echo {} > answer.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SYSTEM = "You have a shell."  # as in mini_agent.yaml
SHELL_TOOL = {  # as mini-SWE-agent offers it
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The bash command to execute"}
            },
            "required": ["command"],
        },
    },
}
MAX_CALLS = 3  # as in mini_agent.yaml
NUM_CHAINS, SUPERVISED_STEPS = 512, 150
BUDGET: dict[str, Any] = {
    "max_turn_tokens": 48,
    "max_context_tokens": 640,
    "max_calls": MAX_CALLS,
}


def write_student(folder: Path, seed: int) -> Path:
    """Write a model after a few supervised steps on chains that are often wrong."""
    tokenizer = train_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(_make_config(tokenizer))
    trainer = Trainer(model, Optim(lr=5e-3, schedule="cosine", warmup_steps=0.1), SUPERVISED_STEPS)
    draw = random.Random(seed)
    chains = [_record_chain(str(n), draw, tokenizer) for n in range(NUM_CHAINS)]
    stage = SftStage.from_trajectories(trainer, chains, {Author.POLICY}, batch_size=16, seed=seed)
    for number in range(SUPERVISED_STEPS):
        row = step(stage, number)
    print(f"{model.num_parameters()} weights, supervised loss {row['loss']:.2f}")
    save_model(folder, model, tokenizer)
    return folder


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer in which a word of the task is one token, and so are the
    text before a command and the text after it."""
    backend = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?[\w.]+|[^\w. ]+|\s+"), "isolated")
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, of_bytes])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    forms = (RIGHT, *WRONG, SUBMIT)
    commands = [_render_call(form.format(name)) for form in forms for name in FILES]
    questions = [text.format(name) for text in QUESTIONS for name in FILES]
    texts = [CHAT_TEMPLATE, json.dumps(SHELL_TOOL), SYSTEM, *commands, *questions]
    backend.train_from_iterator([*texts, *FILES.values()], trainer)
    around = _render_call("|").split("|")
    backend.add_tokens([AddedToken(text, normalized=False) for text in around])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE.replace("%(prefill)s", ""),
    )


def _make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )


def _render_call(command: str) -> str:
    call = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


# -- imperfect chains --------------------------------------------------------------------------


def _record_chain(key: str, draw: random.Random, tokenizer: PreTrainedTokenizerFast) -> Trajectory:
    """Return a chain for a question: 80 % of its commands name the right file, 60 % copy the named
    one, and it may end without being submitted."""
    name = draw.choice([*FILES])
    commands = []
    while len(commands) < MAX_CALLS and SUBMIT not in commands:
        if commands and draw.random() < 0.7:
            commands.append(SUBMIT)
        else:
            named = name if draw.random() < 0.6 else draw.choice([*FILES])
            command = RIGHT if draw.random() < 0.6 else draw.choice(WRONG)
            commands.append(command.format(named))
    task = Task(key, draw.choice(QUESTIONS).format(name), (FILES[name],))
    return asyncio.run(_run_chain(task, commands, tokenizer))


async def _run_chain(
    task: Task, commands: list[str], tokenizer: PreTrainedTokenizerFast
) -> Trajectory:
    """Record commands as the gateway records those of a policy."""
    engine = ScriptedEngine(tokenizer, [_render_call(command) for command in commands])
    renderer = ConversationRenderer(make_dialect("hermes", tokenizer))
    conversation = AgentConversation(
        task, Policy(engine=engine), renderer, BudgetConfig(**BUDGET), MAX_CALLS, "s", task.id
    )
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question},
    ]
    for command in commands:
        request = TurnRequest.model_validate({"messages": messages, "tools": [SHELL_TOOL]})
        reply = await conversation.request_turn(request)
        [identifier], [(tool, arguments)] = reply.call_ids, reply.message.calls
        function = {"name": tool, "arguments": arguments}
        call = {"id": identifier, "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identifier, "content": _imagine_output(command)},
        ]
    trajectory = Trajectory(task)
    await conversation.finish(trajectory)
    return trajectory


def _imagine_output(command: str) -> str:
    return FILES[command.split()[1]] + "\n" if command.startswith("cat") else ""


# -- the recipe --------------------------------------------------------------------------------


def make_recipe(folder: Path, seed: int, **stage: Any) -> dict[str, Any]:
    """Return a recipe that trains the policy through mini-SWE-agent, with its files in `folder`."""
    (files := folder / "files").mkdir(parents=True)
    for name, word in FILES.items():
        (files / name).write_text(f"{word}\n")
    rows = [
        {"question": text.format(name), "answer": word}
        for text in QUESTIONS
        for name, word in FILES.items()
    ]
    guarded = landlock.explain_missing(landlock.FILES) is None
    return {
        "name": "shell",
        "seed": seed,
        "device": "cpu",
        "model": str(write_student(folder / "student", seed)),
        "tasks": str(lines(folder / "tasks.jsonl", *rows)),
        "environment": {
            "name": "command",
            "run": _make_command_line(files),
            "max_concurrent": 4,
            "writable": [] if guarded else ["/"],
        },
        "verdict_reward": "em",
        "budget": BUDGET,
        "stages": {
            "rl": {
                "type": "rl",
                "steps": 20,
                "questions_per_step": 2,
                "group_size": 8,
                "rewards": {"em": 1.0},
                "optim": {"lr": 1e-3},
                "collapse_threshold": None,
            }
            | stage
        },
        "evaluation": {"splits": {"heldout": 1}},
    }


def _make_command_line(files: Path) -> str:
    """Return the command line of a rollout. An answer that was not submitted does not count."""
    mini = shlex.quote(shutil.which("mini") or "mini")
    variables = f"PYTHONPATH={shlex.quote(str(HERE))} MSWEA_CONFIGURED=1 MSWEA_SILENT_STARTUP=1"
    config = shlex.quote(str(HERE / "mini_agent.yaml"))
    return (
        f"cp {shlex.quote(str(files))}/* ."
        f' && env {variables} {mini} -c {config} -t "$(cat)" -o done.json > log.txt 2>&1'
        ' && { grep -q \'"exit_status": "Submitted"\' done.json || rm -f answer.txt; }'
    )
