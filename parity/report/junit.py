"""JUnit XML, as CI systems read it: a suite for each subject, dtype and device, a test for each case."""

import re
from xml.etree import ElementTree as ET

from parity.report import words

ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def render(record: dict) -> str:
    """What passed or differs as declared is a success; what could not run or proves nothing is skipped."""
    s = record["summary"]
    root = ET.Element("testsuites", counted(record["cells"]) | {"name": "parity", "time": str(s["seconds"])})
    lines = [(line.subject, line.dtype, line.device) for line in words.by_subject(record)]
    for name in lines:
        cells = [cell for cell in record["cells"] if (cell["subject"], cell["dtype"], cell["device"]) == name]
        seconds = sum(cell.get("seconds", 0.0) for cell in cells)
        about = {"name": legal(" ".join(name)), "timestamp": record["generated"], "time": f"{seconds:.4f}"}
        suite = ET.SubElement(root, "testsuite", about | counted(cells))
        properties = ET.SubElement(suite, "properties")
        for key, value in {**words.versions(record), "seed": record["seed"]}.items():
            ET.SubElement(properties, "property", {"name": legal(key), "value": legal(str(value))})
        for cell in cells:
            suite.append(test_case(cell))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def counted(cells: list[dict]) -> dict[str, str]:
    """The counts that a suite carries."""
    statuses = [cell["status"] for cell in cells]
    skipped = sum(status in ("unsupported", "no_evidence") for status in statuses)
    return {
        "tests": str(len(cells)),
        "failures": str(statuses.count("failed")),
        "errors": str(statuses.count("error")),
        "skipped": str(skipped),
    }


def test_case(cell: dict) -> ET.Element:
    subject, dtype, device = legal(cell["subject"]), cell["dtype"], cell["device"]
    made = ET.Element(
        "testcase",
        {
            "classname": f"{subject} {dtype} {device}",
            "name": legal(cell["case"]),
            "time": f"{cell.get('seconds', 0.0):.4f}",
        },
    )
    lines = [legal(line) for line in words.cell_lines(cell)]
    tag = {"failed": "failure", "error": "error", "unsupported": "skipped", "no_evidence": "skipped"}
    if cell["status"] in tag:
        first = lines[0] if lines else cell["status"].replace("_", " ")
        ET.SubElement(made, tag[cell["status"]], {"message": first}).text = "\n".join(lines)
    elif cell["status"] == "diverges":
        ET.SubElement(made, "system-out").text = "\n".join(["differs as declared:", *lines])
    return made


def legal(text: str) -> str:
    """Without the control characters that no XML document may hold."""
    return ILLEGAL.sub("\ufffd", text)
