from __future__ import annotations

import subprocess
import sys


def test_a_run_on_folders_pays_for_no_client(tmp_path: object) -> None:
    program = (
        "import sys; from finetune_trainer.storage import open_output, open_source;"
        f"open_output('file://{tmp_path}/out').check_writable();"
        "heavy = {'torch', 'obstore', 'huggingface_hub', 'modelscope_hub', 'filelock', 'requests', 'httpx2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
