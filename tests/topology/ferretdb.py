"""Server that speaks MongoDB's protocol, for the tests of the stores: FerretDB with its SQLite backend.

`MONGO_URL` names another one. Otherwise the binary is taken from the cache. `make test-all` builds it there from the Go
module proxy if it is missing (two minutes, once).
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VERSION = "v1.24.0"
CACHED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hanse" / f"ferretdb-{VERSION}"
MODULE = "github.com/FerretDB/FerretDB"
BUILD_TIMEOUT_S = 600
START_TIMEOUT_S = 30
MAIN = """
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: os.Args[1]},
		Handler:   "sqlite",
		SQLiteURL: "file:" + os.Args[2] + "/",
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
"""


def find() -> str | None:
    return str(CACHED) if CACHED.is_file() else None


def build() -> str:
    """Build the binary into the cache.

    A program of our own embeds it: `go install` needs the list of versions, which not every proxy gives, and the
    command refuses to start without files that only its own build makes.
    """
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("no `go` on the path")
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        manifest = f"module build\n\ngo 1.22\n\nrequire {MODULE} {VERSION}\n"
        Path(folder, "go.mod").write_text(manifest, encoding="utf-8")
        Path(folder, "main.go").write_text(MAIN, encoding="utf-8")
        made = Path(folder, "ferretdb")
        command = [go, "build", "-mod=mod", "-o", str(made), "."]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "GOFLAGS": "-p=1"},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"go build failed: {done.stderr.strip().splitlines()[-1:]}")
        shutil.copy(made, CACHED)
    return str(CACHED)


@contextmanager
def running(binary: str) -> Iterator[str]:
    """Run a server on a free port; yield its URL without a database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, f"127.0.0.1:{port}", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(process, port)
            yield f"mongodb://127.0.0.1:{port}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"ferretdb ended with {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"ferretdb did not listen within {START_TIMEOUT_S} s")
