"""Files in the published formats of other projects, written by tests."""

import json

import pyarrow
import pyarrow.parquet


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(path, *rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def verl(prompt, truth, **extra):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": prompt}]
    return {"prompt": messages, "reward_model": {"ground_truth": truth}, **extra}
