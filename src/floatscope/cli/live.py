"""The verb that serves the live page: serve."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from floatscope.cli.shared import LOAD_BY_DEFAULT, LoadFlags, one_line


def serve(
    *models: str,
    port: int = 8765,
    host: str = "127.0.0.1",
    open_page: Annotated[bool, Parameter(name="--open", negative="")] = False,
    loading: LoadFlags = LOAD_BY_DEFAULT,
) -> None:
    """Serve a page on this machine to type a question and documents and watch models denoise, step by step.

    Example: floatscope serve twin-llada twin-arm --open

    Parameters
    ----------
    models
        Folders, .gguf files, hub ids or twins to choose from; default: twin-llada, twin-dream and twin-arm.
    port
        Where the page is served; 0 takes any free port.
    host
        Who can reach it: 127.0.0.1 is this machine only. Another address opens it to the network, without a password.
    open_page
        Open the page in the browser.
    """
    import webbrowser

    from floatscope.live.examples import TWINS
    from floatscope.live.server import LiveServer

    with LiveServer(host, port) as server:  # before the models are loaded: a port in use is told at once
        server.open_with([loading.load(source) for source in models or TWINS])
        names = one_line(", ".join(server.models))
        who = "; whoever reaches this machine can use it" if server.everywhere else ""
        print(f"floatscope: serving {names} at {server.url} (Ctrl-C ends it{who})", flush=True)
        if open_page:
            webbrowser.open(server.url)
        server.serve_forever()
