"""How the tutorial is run and pasted, with commands that need no servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from .tutorial import Session, outputs, pasted, shape

PAGE = """
```console
$ export NAME=world
$ echo "hello $NAME, 3.5 s at http://localhost:8001/v1"
old
```

<!-- needs: gpu -->

```console
$ false
```

```python
print("from Python")
```

```text
old
```
"""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, "http://127.0.0.1:4001", "http://127.0.0.1:4002", 4003)


def test_outputs_are_pasted_with_the_addresses_of_the_page(session: Session) -> None:
    text = pasted(PAGE, session)
    assert outputs(text) == [
        "",
        "hello world, 3.5 s at http://localhost:8001/v1\n",
        "from Python\n",
    ]
    assert text.count("old") == 0
    assert "$ false" in text


def test_a_command_that_fails_is_not_pasted(session: Session) -> None:
    with pytest.raises(RuntimeError, match="exit code 3: exit 3"):
        pasted("```console\n$ exit 3\n```\n", session)


def test_the_shape_has_words_but_no_figures_steps_or_notes() -> None:
    one = "first token  29 ms\n 0.18 s  small  8.94  On Monday\n\ncosts  large: no cache\nat all\n"
    assert shape(one) == {"first", "token", "ms", "small"}
    assert shape(f"math500 ━━━━━ 32/32 0:00:00\n{one}") == shape(one)
    assert shape(one) == shape(
        one.replace("29", "31").replace("Monday", "Tuesday").replace("no cache", "little cache")
    )
    assert shape(one) ^ shape(one.replace("first token", "second token")) == {"first", "second"}
