"""How strings of the resource are spelled, each pattern with the sentence that explains it.

The patterns keep to what RE2 knows (no look-around): pydantic's engine and the API server's
read them alike.
"""

from __future__ import annotations

JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUALIFIED_NAME = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
ANNOTATION_KEY = (
    r"^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
RESOURCE_NAME = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
FRACTION = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"
QUANTITY = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"
CURRENCY = r"^[A-Z]{3}$"
REVISION = r"^[A-Za-z0-9]([-A-Za-z0-9._/+]*[-A-Za-z0-9_+])?$"
MODULE_NAME = r"^[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?$"

EXPLANATIONS = {
    JOB_NAME: "must be lower case letters, digits and '-', begin with a letter and not end with '-'",
    DNS_LABEL: "must be lower case letters, digits and '-', with a letter or digit at both ends",
    DNS_SUBDOMAIN: "must be lower case letters, digits, '-' and '.', with a letter or digit at both ends",
    QUALIFIED_NAME: "must be name or domain/name, the name of at most 63 letters, digits, '-', '_' and '.'",
    ANNOTATION_KEY: "must be name or domain/name with a name of at most 63 letters, digits, '-', '_' and '.'",
    LABEL_VALUE: "is no label value: at most 63 letters, digits, '-', '_', '.', with a letter or digit "
    "at both ends",
    RESOURCE_NAME: "must be domain/name, like amd.com/gpu",
    FRACTION: 'must be a number in quotes: digits, a point, an exponent, like "0.05" or "1e-4"',
    QUANTITY: "must be a quantity, like 64Gi, 500m or a whole number",
    CURRENCY: "must be three capital letters, like CNY",
    REVISION: "must be a branch, a tag or a commit",
    MODULE_NAME: "must be the name of a module, like q_proj",
}
