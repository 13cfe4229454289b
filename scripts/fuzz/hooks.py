"""Points generated requests at things that exist.

A random UUID names nothing, so that nearly every request would end in a 404. Of the UUIDs that are
generated for a path, most are replaced by those of the cluster under test; anything that is no UUID
is left as it was generated.
"""

import collections
import itertools
import json
import os
import re

import schemathesis

UUID = re.compile(r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")

# The server whose agent does the work; one that may be deleted, paused and rebooted; one without
# an agent, which has a VM in the index.
SERVER = os.environ["FUZZ_SERVER"]
VICTIM = os.environ["FUZZ_VICTIM"]
POSTED = os.environ["FUZZ_POSTED"]
POSTED_VM = os.environ["FUZZ_VM"]

# What would leave a server without its agent, or with one that refuses everything.
HARMFUL = {
    "ServerDelete", "ServerPauseCnAgent", "ServerPauseCnAgentByGET", "ServerReboot",
    "ServerFactoryReset", "ServerSetup", "ServerUninstallAgents",
}
# These take the server from reports of an agent; the fuzzer's reports must not mix with them.
REPORTS = {"ServerEventStatusUpdate", "ServerEventHeartbeat", "ServerSysinfoRegister"}

# Identifiers from earlier answers, newest last.
seen = {
    name: collections.deque(maxlen=20) for name in ("task", "ticket", "job", "image", "package")
}
turn = itertools.count()


def pick(name):
    """A recent identifier, or none."""
    known = seen[name]
    return known[next(turn) % len(known)] if known else None


def real(operation, path, name):
    """What a path's parameter may be replaced by."""
    if name == "server_uuid":
        if operation in HARMFUL:
            return VICTIM
        if operation in REPORTS or (operation == "VmList" and next(turn) % 2):
            return POSTED
        return SERVER
    if name == "taskid":
        return pick("task")
    if name == "ticket_uuid":
        return pick("ticket")
    if name == "job_uuid":
        return pick("job")
    if name == "package":
        return pick("package")
    if name == "uuid":
        if path.startswith("/images/"):
            return pick("image")
        return POSTED_VM
    if name == "id" and path.startswith("/why/"):
        return SERVER
    return None


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId", "")
    path = case.operation.path
    for name, value in list((case.path_parameters or {}).items()):
        named = isinstance(value, str) and (name == "package" or UUID.match(value))
        if named and next(turn) % 5:
            case.path_parameters[name] = real(operation, path, name) or value
    if path == "/why/{kind}/{id}" and next(turn) % 2:
        case.path_parameters["kind"] = "server"
    # Waits are for people; less than a second, or text that is no number, means an hour.
    if operation in ("TaskWait", "ServerWaitlistTicketsWait"):
        case.query = {**(case.query or {}), "timeout": "1"}
    if operation == "ServerSysinfoRegister" and isinstance(case.body, dict):
        sysinfo = case.body.get("sysinfo")
        if isinstance(sysinfo, dict) and next(turn) % 3:
            sysinfo["UUID"] = case.path_parameters["server_uuid"]
    if operation in ("CommandExecute", "DoNop") and isinstance(case.body, dict):
        # An hour's sleep is no finding.
        for name in ("sleep", "timeout"):
            if isinstance(case.body.get(name), (int, float)):
                case.body[name] = 1


@schemathesis.hook
def after_call(context, case, response):
    if response.status_code not in (200, 202):
        return
    try:
        body = json.loads(response.content)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    operation = case.operation.definition.raw.get("operationId", "")
    if operation == "ServerWaitlistTicketCreate":
        seen["ticket"].append(body["uuid"])
    elif operation == "ImageCreate":
        seen["image"].append(body["uuid"])
    elif operation == "PackageCreate":
        seen["package"].append(body["name"])
    elif "job_uuid" in body:
        seen["job"].append(body["job_uuid"])
    elif set(body) == {"id"}:
        seen["task"].append(body["id"])
