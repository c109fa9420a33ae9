"""`hanse account`: checks that all publications arrived, and shows where missing ones stopped."""

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.federator import accounting
from hanse.local import state
from hanse.local.http import get_json
from hanse.protocol.balance import Account, Balance, Books, Destination, Gap, balance

# The traffic is at rest if two readings, this far apart, agree.
_APART_S = 0.3
_COUNTED = ("at", "delivered", "duplicates", "dropped", "missing", "unexplained")
_Urls = Annotated[
    list[str], typer.Option("--metrics", help="Metrics URL of a federator, instead of a state file; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(account)


def account(
    *,
    state_path: Annotated[Path, typer.Option("--state", help="State file of `hanse up`.")] = state.DEFAULT_PATH,
    metrics: _Urls = [],  # noqa: B006 - typer copies it
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", min=0, max=600, help="Longest time to wait until the traffic has come to rest, in seconds."
        ),
    ] = 3.0,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the balance of a federation; exit code 1 if publications are missing without an explanation."""
    urls = metrics or [row.metrics for row in state.read(state_path).federators if row.metrics is not None]
    if not urls:
        raise LocalError("No federator in this state file serves metrics; give their URLs with --metrics.")
    found, silent, is_at_rest = asyncio.run(_read_at_rest(urls, wait_s))
    if is_json:
        document = {**asdict(found), "silent": silent, "is_at_rest": is_at_rest}
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(found, silent, is_at_rest=is_at_rest)
    raise typer.Exit(1 if found.unexplained else 0)


async def _read_at_rest(urls: list[str], wait_s: float) -> tuple[Balance, list[str], bool]:
    """Return the balance, the URLs that did not answer, and whether two readings agreed in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    books, silent = await _read_all(urls)
    while True:
        await asyncio.sleep(_APART_S)
        again, silent = await _read_all(urls)
        is_at_rest = _counted(again) == _counted(books)
        books = again
        if is_at_rest or loop.time() >= until:
            return balance(books), silent, is_at_rest


def _counted(books: list[Books]) -> dict[int, int]:
    return {book.identity: sum(row.publications for row in (*book.rows, *book.waiting)) for book in books}


async def _read_all(urls: list[str]) -> tuple[list[Books], list[str]]:
    answers = await asyncio.gather(*(get_json(f"{url}/accounts") for url in urls), return_exceptions=True)
    books: list[Books] = []
    silent: list[str] = []
    for url, answer in zip(urls, answers, strict=True):
        if isinstance(answer, Unavailable):
            silent.append(url)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            books.append(accounting.read(answer))
    if not books:
        raise Unavailable(f"None of {len(urls)} federators answers; check that the federation is running.")
    if len({book.identity for book in books}) < len(books):
        raise RemoteError("Two of the pages belong to the same federator; name each federator once.")
    return books, silent


def _show(found: Balance, silent: list[str], *, is_at_rest: bool) -> None:
    console = Console()
    table = _whole(found)
    # A table never measures more than the width that it is offered.
    if console.measure(table, options=console.options.update(max_width=1_000_000)).maximum <= console.width:
        console.print(table)
    else:
        _show_each(console, found)
    links = Table("link", "sent", "received", "lost or in transit", box=SIMPLE_HEAD)
    for link in found.links:
        lost = link.why if link.lost is None else str(link.lost)
        links.add_row(f"{link.source} to {link.target}", str(link.sent), str(link.received), lost)
    console.print(links)
    for gap in found.gaps:
        console.print(_gap(gap), markup=False, highlight=False, soft_wrap=True)
    for url in silent:
        console.print(f"{url} does not answer; its counts are missing here.")
    if found.left_off:
        console.print(f"{found.left_off} accounts were omitted: the balance is incomplete.")
    if not is_at_rest:
        console.print("There is still traffic: messages in transit count as missing.")
    console.print(f"unexplained: {found.unexplained}")


def _whole(found: Balance) -> Table:
    """Return the table of all accounts."""
    table = Table("origin", "group", "published", *_COUNTED, box=SIMPLE_HEAD)
    for one in found.accounts:
        head = (str(one.origin), escape(one.group), str(one.published))
        for destination in one.destinations:
            table.add_row(*head, *_cells(destination))
            head = ("", "", "")
        if head[0]:
            table.add_row(*head, "", "", "", "", "", "")
        if in_transit := _in_transit(one):
            table.add_row("", f"  in transit: {in_transit}", "", "", "", "", "", "", "")
    return table


def _show_each(console: Console, found: Balance) -> None:
    """Print a small table per account: in a narrow terminal the table of all would cut the names of groups."""
    for one in found.accounts:
        head = f"origin {one.origin}, group {one.group}: {one.published} published"
        console.print(head, markup=False, highlight=False, soft_wrap=True)
        if one.destinations:
            table = Table(*_COUNTED, box=SIMPLE_HEAD)
            for destination in one.destinations:
                table.add_row(*_cells(destination))
            console.print(table)
        if in_transit := _in_transit(one):
            console.print(f"  in transit: {in_transit}", markup=False, highlight=False, soft_wrap=True)


def _in_transit(account: Account) -> str:
    waiting = {"waiting": account.waiting} if account.waiting else {}
    return _counts({**account.lost_on_the_way, **waiting})


def _gap(gap: Gap) -> str:
    """Return the line for publications that no account counts."""
    until = "now" if gap.until is None else _clock(gap.until)
    when = _clock(gap.since) if gap.until == gap.since else f"from {_clock(gap.since)} to {until}"
    count = "" if gap.publications is None else f", {gap.publications} publications"
    return f"federator {gap.federator}: {gap.kind} {when}{count}: {gap.detail}"


def _clock(at_us: float) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S}Z"


def _cells(destination: Destination) -> tuple[str, ...]:
    unexplained = destination.why if destination.unexplained is None else str(destination.unexplained)
    delivered = str(destination.delivered + destination.merged)
    dropped = _counts(destination.dropped)
    return (
        str(destination.federator),
        delivered,
        str(destination.duplicates),
        dropped,
        str(destination.missing),
        unexplained,
    )


def _counts(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
