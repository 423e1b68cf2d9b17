"""python -m onward.local.api --state DIR [--port P]"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from onward.errors import UsageError
from onward.local.api.serving import run
from onward.local.api.settings import Settings
from onward.local.daemon import open_many_files


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m onward.local.api", description="The Kubernetes API of `onward up`."
    )
    parser.add_argument("--state", type=Path, required=True, help="directory for database, certificates, kubeconfig")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 takes a free one and keeps it")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--extra-host", action="append", default=[], help="one more address, for pods that use the API")
    parser.add_argument("--history", type=int, default=20_000, help="changes kept for watches that resume")
    parser.add_argument("--max-pages", type=int, default=0, help="upper bound of the database, in pages of 4 KiB")
    parser.add_argument("--service-range", default="10.96.0.0/16", help="where services get their addresses from")
    parser.add_argument("--controller", action="append", default=[], help="plural.group that something acts on")
    args = parser.parse_args()
    open_many_files()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = Settings(
        state=args.state,
        port=args.port,
        host=args.host,
        extra_hosts=tuple(args.extra_host),
        history=args.history,
        max_pages=args.max_pages,
        service_range=args.service_range,
        controllers=tuple(args.controller),
    )
    try:
        asyncio.run(run(settings))
    except UsageError as error:
        print(f"onward api: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
