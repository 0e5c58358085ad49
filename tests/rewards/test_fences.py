"""Programs in answers, in Markdown as written by people and models."""

import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fieldcraft.rewards.program_extraction import extract_program, find_blocks

ADD = "a, b = map(int, input().split())\n\nif a:\n    print(a + b)\nelse:\n\tprint(b)\n"
OUTPUT = "For the input `2 3` it prints\n```\n5\n```\n"
SHELL = "Run it:\n~~~bash\npython a.py\n~~~\n"
OTHERS = [OUTPUT, SHELL, "```text\nprint(1)\n```\n", "It takes ```O(1)``` time.\n", "```\n\n```\n"]
OTHERS += ["```cpp\nint main() { return 0; }\n```\n", "```json\n[1]\n```\n", "```\nyes\n```\n"]
TAGS = ["python", "py", "python3", "Python 3", "Python", "py3", "python3.11", " python", "pypy3"]
TAGS += ['python title="sum.py"', "{.python .numberLines}", "python {1,3}", "language-python", ""]
TAGS += ["python:sum.py", "src/sum.py", "python,editable", "{python}"]
MARGINS = ["", "   ", "\t", "      ", "> ", "> > ", ">"]


@example(
    tag="",
    fence="```",
    margin="",
    before=[],
    after=["```text\nprint(1)\n```\n"],
    ends="\n",
    closed=True,
)
@given(
    tag=st.sampled_from(TAGS),
    fence=st.sampled_from(["```", "~~~", "````", "~~~~~"]),
    margin=st.sampled_from(MARGINS),
    before=st.lists(st.sampled_from(OTHERS), max_size=2),
    after=st.lists(st.sampled_from(OTHERS), max_size=2),
    ends=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
)
def test_a_program_is_found_however_it_is_fenced(tag, fence, margin, before, after, ends, closed):
    end = fence if closed or after else ""
    block = textwrap.indent(f"{fence}{tag}\n{ADD}{end}", margin, lambda _: True)
    text = "\n".join(["So:", *before, block, *after]).replace("\n", ends)
    assert str(extract_program(text)).strip() == ADD.strip()


@pytest.mark.parametrize(
    "answer",
    [
        f"{ADD}",
        f"So: ```python\n{ADD}```\nIt adds.",
        f"**The program** ```py\n{ADD}```\n{OUTPUT}",
        f"1. ```python\n{textwrap.indent(ADD, '   ')}   ```\n",
        f"- Here:\n\n  ```python\n{textwrap.indent(ADD, '  ')}  ```\n  It adds.",
        f"```python\n{ADD}\n\nThis prints the sum, that is 5.",  # never closed
        f"```python\n{ADD.rstrip()}```\nThis prints the sum.",
        f"```python\n{ADD.rstrip()}```\nRun it:\n```bash\npython a.py\n```",
        f"The program:\n\n{textwrap.indent(ADD, '    ')}\nIt adds.",
        f"```python\nprint('old')\n```\nBetter:\n```python\n{ADD}```",
        f"```python\n{ADD}```\nNever like this:\n```python\nprint(a +\n```",
        f"```python\n{ADD}```\nNot C:\n```c\nprint(1);\n```",
        f"````markdown\n# Sum\n```python\n{ADD}```\n````",
        f"```python\n{textwrap.indent(ADD, '    ')}```",
        f"```\n{ADD}```\nprints\n```\n[1, 2]\n```",
    ],
)
def test_the_program_among_other_text(answer):
    assert str(extract_program(answer)).strip() == ADD.strip()


def test_a_block_of_python_with_a_mistake_is_the_program_where_there_is_no_other():
    assert extract_program("```python\nprint(\n```\n```\n5\n```") == "print(\n"


def test_a_fence_in_a_string_of_the_program_is_part_of_it():
    program = 'def f():\n    """\n    ```\n    x\n    ```\n    """\n'
    assert extract_program(f"```python\n{program}```") == program


@pytest.mark.parametrize(
    "answer",
    ["", "It cannot be done.", "Yes", "42", "```\n5\n```", "```bash\npython a.py\n```", "print("],
)
def test_answers_without_a_program(answer):
    assert extract_program(answer) is None


@given(text=st.text(alphabet="`~ >\n\tpy1.-x(", max_size=60))
def test_any_text_has_blocks_or_none(text):
    extract_program(text)
    assert all("\r" not in block.text for block in find_blocks(text))


@pytest.mark.parametrize(
    "answer",
    [
        "<answer>\n{}</answer>",
        "It is <code>\n{}</code>.",
        "<python>\n{}",
        '<pre><code class="language-python">{}</code></pre>',
        "<answer><code>{}</code></answer>",
        "[PYTHON]\n{}[/PYTHON]",
        "[BEGIN]\n{}[DONE]",
        "[BEGIN]\n{}[END]\nThat is it.",
        "\ufeff{}",
        "Here is the program:\n\n{}",
        "```ipython3\n{}```",
        "```code\n{}```",
        "```tool_code\n{}```",
        "```plaintext\n{}```\nIt prints\n```text\n5\n```",
    ],
)
def test_a_program_that_is_not_in_a_fence_of_python(answer: str) -> None:
    program = "a, b = map(int, input().split())\nprint(a + b)\n"
    found = extract_program(answer.format(program))
    assert found is not None
    assert found.strip() == program.strip()


def test_signs_of_html_in_a_program_are_read() -> None:
    found = extract_program("<code>print(1 &lt; 2)</code>")
    assert found == "print(1 < 2)"


def test_a_session_is_what_was_typed() -> None:
    session = "```pycon\n>>> for n in [1]:\n...     print(n)\n...\n1\n>>> print(2)\n2\n```"
    assert extract_program(session) == "for n in [1]:\n    print(n)\n\nprint(2)\n"
