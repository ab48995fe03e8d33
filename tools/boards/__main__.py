"""The command of `tools/boards`."""

from tools.boards.files import main

if __name__ == "__main__":
    main()
