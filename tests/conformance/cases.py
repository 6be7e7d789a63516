# SPDX-License-Identifier: Apache-2.0
"""Cases of one test that differ only in their data.

The set-up of a test takes longer than such a case. So one test runs all of its
cases, and names each case that failed.
"""

import functools
import inspect


def each(names, cases):
    """Run a test for each of *cases*, as pytest.mark.parametrize does, but
    within one test.

    If the test uses the fixture ``job``, each case has a job of its own. All
    cases run, even if some of them fail.

    :param names: Names of the parameters, separated by commas.
    :param cases: For each case, the value of the parameter, or a tuple with
        the values of all parameters.
    """
    parameters = [name.strip() for name in names.split(',')]
    cases = [one if len(parameters) > 1 else (one,) for one in cases]
    assert cases, 'there is no case'

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures):
            failed = {}
            for number, values in enumerate(cases):
                case = dict(zip(parameters, values, strict=True))
                if 'job' in fixtures:
                    case['job'] = f'{fixtures["job"]}-{number}'
                name = ' '.join(str(getattr(value, 'value', value))
                                for value in values)
                try:
                    test(**fixtures | case)
                except BaseException as exc:
                    exc.add_note(f'case: {name}')
                    if not isinstance(exc, Exception):
                        raise
                    failed[name] = exc
            if failed:
                raise ExceptionGroup(
                    f'{len(failed)} of {len(cases)} cases failed: '
                    + '; '.join(failed), list(failed.values()))
        run.__signature__ = signature.replace(parameters=[
            one for one in signature.parameters.values()
            if one.name not in parameters])
        return run
    return decorate
