"""A small application for tests of a cluster: three pods with a volume, a native sidecar, and a socket between them.

The sidecar counts requests on a socket in a shared volume. The main container writes its pod's name to its disk, and
answers HTTP requests with that name and the sidecar's count.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NAME", "OWNER", "objects"]

NAME = "web"
OWNER = 65532

_SIDECAR = """
import os, socketserver, itertools
count = itertools.count(1)
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"%d" % next(count))
path = "/shared/counter.sock"
if os.path.exists(path):
    os.unlink(path)
socketserver.UnixStreamServer(path, Handler).serve_forever()
"""

_MAIN = """
import http.server, os, socket
with open("/data/names", "a") as file:
    file.write(os.environ["POD"] + "\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect("/shared/counter.sock")
            count = peer.recv(100)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["POD"].encode() + b" " + count)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def objects(image: str, *, storage_class: str) -> list[dict[str, Any]]:
    """Return a headless Service, a StatefulSet with one pod per node, and a PodDisruptionBudget of one."""
    labels = {"app": NAME}
    service = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True, "ports": [{"port": 8080}]}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    stateful_set = {
        "serviceName": NAME,
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(image, labels)},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": service},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": NAME}, "spec": stateful_set},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": NAME}, "spec": budget},
    ]


def _pod(image: str, labels: dict[str, str]) -> dict[str, Any]:
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    shared = {"name": "shared", "mountPath": "/shared"}
    sidecar = {
        **_container("sidecar", image, _SIDECAR),
        "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["test", "-S", "/shared/counter.sock"]}, "periodSeconds": 1},
        "volumeMounts": [shared],
    }
    main = {
        **_container("main", image, _MAIN),
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
        "volumeMounts": [shared, {"name": "data", "mountPath": "/data"}],
    }
    return {
        "terminationGracePeriodSeconds": 1,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": {
            "runAsUser": OWNER,
            "runAsNonRoot": True,
            "fsGroup": OWNER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [sidecar],
        "containers": [main],
        "volumes": [{"name": "shared", "emptyDir": {}}],
    }


def _container(name: str, image: str, code: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", code],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
