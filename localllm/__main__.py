"""``python -m localllm``."""

from localllm.cli.main import main

main()
