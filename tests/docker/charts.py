"""The main ways to fill in the chart's values, and those that are refused."""

from __future__ import annotations

import yaml

from .files import ROOT, Tree, block

KEYS: Tree = {"keys": {"secretName": "service-keys"}}
HOOK: Tree = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
SPECULATION = (
    '--speculative-config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
)

GOOD: dict[str, Tree] = {
    "documented": yaml.safe_load(block(ROOT / "docs/deploy.md", "yaml")),
    "pair": KEYS,
    "urls": {
        **KEYS,
        "small": {
            "url": "http://a:8000/v1,http://b:8000/v1/",
            "apiKey": {"secretName": "upstream"},
        },
        "large": {"url": "https://gateway.example.com/large/v1", "servedName": "huge"},
        "critic": {
            "url": "http://judge:8000",
            "apiKey": {"secretName": "upstream", "secretKey": "critic"},
        },
        "tracing": {"endpoint": "http://collector:4318"},
    },
    "private CA": {
        **KEYS,
        "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
    },
    "proxy": {
        **KEYS,
        "large": {"url": "http://large.example.com:8000/v1"},
        "env": [
            {"name": "HTTP_PROXY", "value": "http://proxy:3128"},
            {"name": "NO_PROXY", "value": ".svc,10.0.0.0/8"},
        ],
    },
    "IPv6": {
        **KEYS,
        "small": {"url": "http://[fd00::1]:8000/v1, http://[fd00::2]:8000"},
        "large": {"url": "https://[2001:db8::1]/v1/"},
        "critic": {"url": "http://[fd00::3]"},
        "tracing": {"endpoint": "http://[fd00::9]:4318"},
    },
    "words": {
        "keys": {"secretName": "08", "secretKey": "on"},
        "config": '  \n# Gruß \U0001f642: x\npolicy = \'bild\'\nsystem = """\n  a: b\n\tc"""',
        "env": [
            {"name": "HTTPS_PROXY", "value": "http://[fd00::8]:3128"},
            {"name": "NO_PROXY", "value": "*"},
            {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "a: b # c"},
        ],
        "envFromSecret": "007",
        "priorityClassName": "1",
        "serviceAccount": {"name": "12"},
        "small": {"model": "123", "servedName": "null"},
        "large": {"model": "*/x: y", "storageClass": "1"},
        "vllm": {
            "runtimeClassName": "true",
            "envFromSecret": "1e3",
            "terminationGracePeriodSeconds": 1000000,
            "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        },
        "podLabels": {"team": "true"},
        "podAnnotations": {"port": "1"},
    },
    "half": {
        **KEYS,
        "small": {"url": "http://a:8000/v1"},
        "networkPolicy": {"egress": [{"to": [HOOK]}]},
    },
    "replicas": {
        **KEYS,
        "small": {"replicaCount": 3, "apiKey": {"secretName": "upstream"}},
        "large": {
            "gpus": 4,
            "extraArgs": [SPECULATION, "--max-num-seqs=64"],
            "storageClass": "fast",
            "resources": {"limits": {"memory": "64Gi"}},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        "vllm": {"huggingFaceToken": {"secretName": "hub"}, "runtimeClassName": "nvidia"},
    },
    "hpa": {**KEYS, "autoscaling": {"enabled": True}},
    "keda": {**KEYS, "keda": {"enabled": True}},
    "monitored": {
        **KEYS,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True},
        "dashboard": {"enabled": True},
        "networkPolicy": {"metricsFrom": [HOOK], "from": [HOOK]},
    },
    "open": {
        "insecure": True,
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "drainSeconds": 5,
        "config": 'policy = "bild"\nsystem = "keys = x"\n[budget]\ntokens = 4096 # keys = 1\n',
    },
    "ingress": {
        **KEYS,
        "ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "tls"},
        "fullnameOverride": "x",
    },
}

BAD: dict[str, tuple[Tree, str]] = {
    "a key in the config": (
        KEYS | {"config": '[large]\napi_key = "secret"\n'},
        "would see a key in config",
    ),
    "no key": ({}, "keys.secretName, or set insecure=true"),
    "two scalers": (
        {**KEYS, "autoscaling": {"enabled": True}, "keda": {"enabled": True}},
        "not both",
    ),
    "unseen models": ({**KEYS, "serviceMonitor": {"enabled": True}}, "networkPolicy.metricsFrom"),
    "unknown value": ({**KEYS, "small": {"gpu": 2}}, "additional properties 'gpu' not allowed"),
    "a number in env": (
        {**KEYS, "env": [{"name": "STEPSPEC_SERVICE__MAX_RUNNING", "value": 128}]},
        "/env/0/value",
    ),
    "wrong kind": ({**KEYS, "replicaCount": "two"}, "/replicaCount"),
    "too much memory": (
        {**KEYS, "large": {"gpuMemoryUtilization": 1.5}},
        "/large/gpuMemoryUtilization",
    ),
    "no scheme": (
        {**KEYS, "keda": {"prometheusAddress": "prometheus:9090"}},
        "/keda/prometheusAddress",
    ),
}
