"""Makes semantics.json anew from the templates and arguments in it: python gen_semantics.py (needs jinja2 3.1.6)."""
import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """Marks the assistant's own text, as transformers' tracker does when nothing tracks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = now.strftime
    return env


path = pathlib.Path(__file__).with_name("semantics.json")
golden = json.loads(path.read_text(encoding="utf-8"))
env = environment(datetime.datetime.fromisoformat(golden["now"]))
for n, case in enumerate(golden["cases"]):
    case = golden["cases"][n] = {"template": case["template"]}
    try:
        case["output"] = env.from_string(case["template"]).render(**golden["arguments"])
    except Exception as e:  # any error is a result
        case["error"] = {"type": type(e).__name__, "message": str(e)[:300]}
path.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
