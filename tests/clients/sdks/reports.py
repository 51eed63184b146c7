"""What the SDKs' checks share."""

import json


def report(*checks):
    """Runs every check, whatever the others do, and prints a JSON line for each."""
    for check in checks:
        line = {"check": check.__name__, "ok": True, "detail": ""}
        try:
            check()
        except Exception as e:
            line.update(ok=False, detail=f"{type(e).__name__}: {e}"[:800])
        print(json.dumps(line), flush=True)
