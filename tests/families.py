"""Tiny tokenizers with the formats of model families: turn markers, the opening and the end of a
model turn, and the stop tokens of the generation settings. The templates are written here."""

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Family:
    """Conversation format of a model family.

    Attributes:
        template: its chat template.
        special: its special tokens.
        eos: EOS token of its tokenizer.
        stops: stop tokens of its generation settings.
        end: text that its template writes after a turn of the model.
        bos: text that its template starts with.
        plain: tokens that it has in addition, and that are not special.
    """

    template: str
    special: tuple[str, ...]
    eos: str
    stops: tuple[str, ...]
    end: str
    bos: str = ""
    plain: tuple[str, ...] = ()

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a byte-level tokenizer without merges, so that a text has a unique encoding."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(t, normalized=False) for t in self.special])
        backend.add_tokens([AddedToken(t, normalized=False) for t in self.plain])
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token=self.eos,
            bos_token=self.bos or None,
            chat_template=self.template,
        )

    def ends(self, tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
        """Return the ids at which generation stops."""
        return tuple(tokenizer.convert_tokens_to_ids(list(self.stops)))


def chatml(opening: str = "", system: str = "") -> str:
    """Return ChatML with this opening of a model turn, and a system prompt if none is given."""
    first = f"{{% if messages[0].role != 'system' %}}{system}{{% endif %}}" if system else ""
    return (
        first + "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content"
        " + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n" + opening + "' }}{% endif %}"
    )


def headers(opening: str, closing: str, end: str) -> str:
    """Return a header with the role, two line breaks, the text and an end."""
    return (
        "{{ bos_token }}{% for m in messages %}{{ '" + opening + "' + m.role + '" + closing + "'"
        " + m.content | trim + '" + end + "' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '" + opening + "assistant" + closing + "' }}{% endif %}"
    )


IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GEMMA = """{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + \
('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}\
{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}\
{% endfor %}"""
GLM = """[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}\
{% if add_generation_prompt %}<|assistant|>\n{% endif %}"""
GLM_THINKING = """[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' }}\
{% if m.role == 'assistant' %}{{ '<think></think>\n' + m.content.split('</think>')[-1] | trim }}\
{% else %}{{ m.content }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
R1 = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}\
{{ '<｜User｜>' + m.content }}{% else %}\
{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}\
{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"""
R1_CLOSED = R1.replace("<｜Assistant｜><think>\n", "<｜Assistant｜></think>").replace(
    "<｜Assistant｜>' + m", "<｜Assistant｜></think>' + m"
)
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>")

KIMI = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_assistant|>\
{% elif m.role == 'user' %}<|im_user|>{% else %}<|im_system|>{% endif %}\
{{ m.role + '<|im_middle|>' + m.content + '<|im_end|>' }}{% endfor %}\
{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""
# The system prompt is part of the first message, and roles must alternate.
GEMMA_3 = """{{ bos_token }}{% set ns = namespace(before='', count=0) %}{% for m in messages %}\
{% if m.role == 'system' %}{% set ns.before = m.content + '\n\n' %}{% else %}\
{% if (m.role == 'user') != (ns.count % 2 == 0) %}{{ raise_exception('roles alternate') }}\
{% endif %}\
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' + ns.before \
+ m.content | trim + '<end_of_turn>\n' }}{% set ns.before = '' %}{% set ns.count = ns.count + 1 %}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL_11 = """{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}\
{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{% elif m.role == 'user' %}\
{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}\
{% endfor %}"""
MINIMAX = """{{ ']~!b[]~b]system\nYou help.[e~[\n' }}{% for m in messages %}\
{{ ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\n' + m.content + '[e~[\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}"""
HUNYUAN = """<|hy_begin|>{% for m in messages %}{% if m.role == 'assistant' %}\
{{ '<|hy_Assistant|>' + m.content + '<|hy_place2|>' }}{% else %}{{ '<|hy_User|>' + m.content }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}<|hy_Assistant|>{% endif %}"""

FAMILIES = {
    "qwen2.5": Family(
        chatml(system="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"),
        IM,
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        "<|im_end|>",
    ),
    "qwen3": Family(chatml(), IM, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "qwen3, not thinking": Family(
        chatml("<think>\n\n</think>\n\n"),
        IM,
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        "<|im_end|>",
    ),
    "qwen2.5, base tokenizer": Family(
        chatml(), IM, "<|endoftext|>", ("<|endoftext|>",), "<|im_end|>"
    ),
    "smollm2": Family(chatml(), IM, "<|im_end|>", ("<|im_end|>",), "<|im_end|>"),
    "llama 3": Family(
        headers("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
        (*LLAMA, "<|eot_id|>", "<|eom_id|>"),
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "gemma": Family(
        GEMMA,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        ("<eos>", "<end_of_turn>"),
        "<end_of_turn>",
        "<bos>",
    ),
    "gemma, settings that name one end": Family(
        GEMMA,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        ("<eos>",),
        "<end_of_turn>",
        "<bos>",
    ),
    "phi 3": Family(
        headers("<|", "|>\n", "<|end|>\n"),
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
        "<|end|>",
    ),
    "phi 4": Family(
        headers("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        (*IM, "<|im_sep|>"),
        "<|im_end|>",
        ("<|endoftext|>", "<|im_end|>"),
        "<|im_end|>",
    ),
    "phi 4 mini": Family(
        headers("<|", "|>", "<|end|>")
        + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        ("<|endoftext|>", "<|end|>"),
        "<|end|>",
    ),
    "mistral": Family(
        MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", ("</s>",), "</s>", "<s>"
    ),
    "glm 4": Family(
        GLM,
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|endoftext|>",
        ("<|endoftext|>", "<|user|>"),
        "<|user|>",
    ),
    "glm 4.6": Family(
        GLM_THINKING,
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|endoftext|>",
        ("<|endoftext|>", "<|user|>"),
        "<|user|>",
    ),
    "deepseek v3.1, not thinking": Family(
        R1_CLOSED,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        "<｜end▁of▁sentence｜>",
        ("<｜end▁of▁sentence｜>",),
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
    ),
    "deepseek r1": Family(
        R1,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
        ("<｜end▁of▁sentence｜>",),
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
    ),
    "kimi k2": Family(
        KIMI,
        (
            "[EOS]",
            "<|im_end|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_system|>",
            "<|im_middle|>",
        ),
        "[EOS]",
        ("<|im_end|>",),
        "<|im_end|>",
    ),
    "llama 4": Family(
        headers("<|header_start|>", "<|header_end|>\n\n", "<|eot|>"),
        (*LLAMA[:2], "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
        "<|eot|>",
        ("<|end_of_text|>", "<|eom|>", "<|eot|>"),
        "<|eot|>",
        "<|begin_of_text|>",
    ),
    "gemma 3": Family(
        GEMMA_3,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        ("<eos>", "<end_of_turn>"),
        "<end_of_turn>",
        "<bos>",
    ),
    "mistral v11": Family(
        MISTRAL_11,
        ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        "</s>",
        ("</s>",),
        "</s>",
        "<s>",
    ),
    "minimax m2": Family(MINIMAX, ("]~!b[", "]~b]", "[e~["), "[e~[", ("[e~[",), "[e~["),
    "hunyuan": Family(
        HUNYUAN,
        ("<|hy_begin|>", "<|hy_User|>", "<|hy_Assistant|>", "<|hy_place2|>", "<|hy_eos|>"),
        "<|hy_eos|>",
        ("<|hy_eos|>", "<|hy_place2|>"),
        "<|hy_place2|>",
    ),
}
