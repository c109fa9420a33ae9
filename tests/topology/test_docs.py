import asyncio
import json
import re
from pathlib import Path
from typing import Any

from tests.topology.simulated import running

from hanse.settings import settings_of
from hanse.topology.problems import NAMES
from hanse.topology.settings import ManagerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")


def examples() -> list[dict[str, Any]]:
    found = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    return [json.loads(text) for text in found]


def test_a_manager_accepts_and_returns_the_examples_of_the_contract(tmp_path: Path) -> None:
    join, word, announcement, report = examples()

    async def main() -> None:
        async with running(tmp_path) as here:
            await here.join(0)
            await here.join(1)
            answer = await here.client.post("/api/v1/join", json=join)
            assert answer.status_code == 200, answer.text
            assert answer.json().keys() == word.keys()
            assert answer.json()["id"] == word["id"]
            assert answer.json()["settings"].keys() == word["settings"].keys()
            told = await here.client.post("/api/v1/federators/2/report", json=report)
            assert told.status_code == 200, told.text
            await asyncio.sleep(0)
            published = [json.loads(payload) for _, _, payload in here.brokers.published]
            assert all(one.keys() == announcement.keys() for one in published)
            assert published[0]["neighbor"].keys() == announcement["neighbor"].keys()

    asyncio.run(main())


def test_the_page_names_every_setting_and_its_alias() -> None:
    for one in settings_of(ManagerSettings):
        for name in (one.name, *one.spec.aliases):
            assert f"`{name}`" in PAGE, name


def test_the_page_names_every_problem_that_a_client_can_meet() -> None:
    for name in NAMES.values():
        assert name == "internal" or f"`{name}`" in PAGE, name


def test_the_page_names_every_event() -> None:
    source = Path(__file__).parents[2] / "src" / "hanse" / "topology"
    text = "".join(path.read_text(encoding="utf-8") for path in source.glob("*.py"))
    kinds = set(re.findall(r'(?:Happening|\.tell)\("([a-z]+)"', text)) | {"gone", "left", "revoked", "dropped"}
    assert len(kinds) >= 13
    for kind in kinds:
        assert f"`{kind}`" in PAGE, kind
