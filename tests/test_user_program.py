"""What mypy checks also runs."""

import user_program


def test_the_program_runs():
    user_program.main()
