"""Ways to damage a file or a value, by a random stream alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 10**400, -0.5, 1e308, float("nan"), float("inf"), "", "x", "\0",
    "\ud800", "../../evil", "block_causal(0)", f"block_causal({'9' * 30})", "\x1b[31mred", "a" * 5000,
    "</script><script>document.title='ran'</script>", "<img src=x onerror=\"document.title='ran'\">",
    [], [[]], [None], [1, "a"], {}, {"": {}}, {"__proto__": 1},
)  # fmt: skip

LITERALS = (
    "nan", "inf", "-inf", "-1", "0", "1", "1.5", "true", "9223372036854775808", "9" * 5000, '""', '"x"', '"../../evil"',
    '"</script>"', '"\\u0000"', "[]", "[[]]", "[1, 'a']", "['a', 'a']", "{}", "{ a = {} }", "1979-05-27", "''", "[{}]",
    '"0..999999999999"', '"all"', '"block_causal(0)"', '"zscore(nan)"', '"dream"', '["flow", "flow"]', "'\"'",
)  # fmt: skip
"""Values of TOML."""


def flip_a_bit(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut_off(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def overwrite(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + rng.randbytes(rng.randrange(1, 64)) + content[start + rng.randrange(64) :]


def add_to(rng: random.Random, content: bytes) -> bytes:
    return content + rng.randbytes(rng.randrange(1, 64))


DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip_a_bit, flip_a_bit, cut_off, overwrite, add_to)


def damage(rng: random.Random, path: Path) -> str:
    """Change a file; what was done to it."""
    content = path.read_bytes()
    if not content or rng.random() < 0.05:
        path.unlink()
        return "gone"
    done = rng.choice(DAMAGES)
    path.write_bytes(done(rng, content))
    return done.__name__


def change_a_value(rng: random.Random, table: Any) -> str:
    """Exchange, drop or add one value somewhere in JSON data, in place; where it was."""
    place, where = table, ""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return where
        key = rng.choice(keys)
        where += f".{key}"
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.6:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        else:
            alike = [value for value in VALUES if type(value) is type(place[key])]  # wrong in content alone
            place[key] = rng.choice(alike if alike and rng.random() < 0.5 else VALUES)
        return where


def change_a_json(rng: random.Random, path: Path) -> str:
    """Change a value of a JSON file; where it was."""
    table = json.loads(path.read_text())
    where = change_a_value(rng, table)
    path.write_text(json.dumps(table))
    return where


def change_a_line(rng: random.Random, text: str) -> str:
    """A TOML text with a value exchanged, a line said twice, or one left out."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition(" = ")
        chance = rng.random()
        if equals and chance < 0.8:
            lines[place] = f"{key} = {rng.choice(LITERALS)}"
        elif chance < 0.9:
            lines.insert(place, lines[place])
        else:
            lines[place] = ""
    return "\n".join(lines)
