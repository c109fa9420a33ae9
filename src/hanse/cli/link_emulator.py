"""`hanse link-emulator`: a link that can be delayed, limited or cut while it is in use."""

import asyncio

import typer

from hanse.errors import LocalError
from hanse.local import emulator_control
from hanse.local.emulator import LinkEmulator


def register(app: typer.Typer) -> None:
    """Add `hanse link-emulator` to the application."""

    @app.command("link-emulator")
    def link_emulator(
        target: str = typer.Option(..., help="Address to forward to, HOST:PORT."),
        listen: int = typer.Option(0, help="Port to listen on; 0 chooses one."),
        control: int = typer.Option(0, help="Port for control lines; 0 chooses one."),
        seed: int = typer.Option(0, help="Seed of the jitter; equal seeds give equal jitter."),
    ) -> None:
        """Forward between two federators, and obey control lines such as `delay 20ms`, `cut forward`, `restore`."""
        host, colon, port = target.rpartition(":")
        if not colon or not port.isdecimal():
            raise LocalError(f"Target is {target!r}; expected HOST:PORT, such as 127.0.0.1:1884.")
        asyncio.run(_run(host, int(port), listen, control, seed))


async def _run(host: str, port: int, listen: int, control: int, seed: int) -> None:
    emulator = LinkEmulator(host, port, seed=seed)
    await emulator.start(listen)
    server = await emulator_control.serve(emulator, control)
    control_port = server.sockets[0].getsockname()[1]
    typer.echo(f"link 127.0.0.1:{emulator.port} -> {host}:{port}, control 127.0.0.1:{control_port}")
    await asyncio.Event().wait()
