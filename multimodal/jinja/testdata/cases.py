"""Writes language.json.gz: snippets and templates written for this test, rendered by transformers. Its Python: scripts/peers."""
import copy
import datetime
import gzip
import itertools
import json
import sys
from pathlib import Path

from transformers.utils import chat_template_utils


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 12, 1, 9, 5, 3)


chat_template_utils.datetime = Clock

CONTEXT = {
    "s": "Hello World", "e": "", "u": "straße ÎΣ ŉ ﬁ ǅ", "n": 7, "neg": -7, "f": 2.5, "zero": 0, "big": 12345678901234567890123,
    "t": True, "no": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a", "B"], "mixed": [1, "a", None, 2.5, True, [1], {"k": 1}],
    "d": {"b": 1, "a": [1, 2.5, None, True, {}], "é": "x\n\"<>&'\u2028\x7f😀"},
    "p": [{"n": "x", "v": 2, "g": "a"}, {"n": "y", "v": 1, "g": "B"}, {"n": "Z", "v": 3, "g": "a"}, {"n": "w", "v": 2, "g": "b"}],
    "tree": [{"n": "1", "c": [{"n": "1.1", "c": []}, {"n": "1.2", "c": [{"n": "1.2.1", "c": []}]}]}, {"n": "2", "c": []}],
}

VALUES = ["7", "-7", "0", "2", "2.5", "-0.5", "true", "'ab'", "''", "[1]", "[]", "(1, 2)", "{'a': 1}", "none", "nope", "10 ** 3", "1e300"]
OPERATORS = "+ - * / // % ~ == != < <= > >= in and or".split() + ["not in"]

EXPRESSIONS = r"""
2 ** 10|2 ** -1|2 ** 0.5|(-2) ** 3|-2 ** 2|0 ** 0|7 // 2|-7 // 2|7 // -2|-7 % 3|7 % -3|7.5 // 2|-7.5 % 2|7.5 % -2|1 / 3
0.1 + 0.2|1e16|1e15|123456789.123|1e-5|0.0001|1e22|1.0|-0.0|1e400|-1e400|5e-324|100000000000000000000.0|2.0 ** 70|1_000|0x1F|0b101|0o17|1e3|1E-3
big|string|big is integer
1 == 1.0|1 == true|0 == false|'1' == 1|[1] == [1.0]|(1, 2) == (1, 2)|[1, 2] == (1, 2)|{'a': 1} == {'a': 1.0}|none == nope|nope == nope|none is none
1 < 2 < 3|1 < 3 < 2|3 > 2 > 1 > 0|1 < 2 > 1|1 == 1 != 2|'a' < 'b'|[1, 2] < [1, 3]|[1] < [1, 2]|(1, 'a') < (1, 'b')|[1] < ['a']|none < 1|{'a': 1} < {'b': 1}|1 in [1] in [[1]]
not 1|not not 'a'|not nope|1 and 2|0 or 'x'|none and 1|'' or none|1 if 0|1 if 0 else 2 if 0 else 3|(1 if nope is defined else 2)|not 1 == 2|not true and false
s[0]|s[-1]|s[20]|s[1:4]|s[::-1]|s[-3:]|s[:-3]|s[::2]|s[5:1:-1]|s[1:1]|s[10:100]|s['a']|s[none]|l[0]|l[-1]|l[5]|l[::-1]|l[1:]|l[:1]|l[-2:]|l[0:3:2]|l[::0]|l['a']|l[1.0]|l[true]|d['b']|d['x']|d.b|d.x|d.x.y|d['a'][1]|d.a[4]
(1, 2, 3)[1]|(1, 2, 3)[1:]|(1,)|()|(1)|[]|{}|{'a': 1, 1: 2, none: 3, true: 4, 1.5: 5}|{1: 'a', 1.0: 'b', true: 'c'}|{[1]: 2}|{'a': 1}['a']|{1: 2}[1.0]|{true: 2}[1]
s.a|s.upper|none.x|n.x|nope.x|nope['x']|nope()|s()|n()|d()|l()|none()|true.x|f.x|s.upper()|s['upper']()|d['items']()|d.items|d.keys()|d.values()|d.items()|l.append(1)|l.index(1)|l.index(9)|l.count(1)|l.pop()|d.get('b')|d.get('x')|d.get('x', 5)|d.pop('b')|d.update({})|d.copy()|l.copy()
d.keys()[0]|d.items()|list|d.keys()|list|d.values()|length|'b' in d.keys()|'b' in d|1 in d.values()|('b', 1) in d.items()|d.setdefault('q', 1)|d.clear()|l.sort()|l.reverse()|l.extend([1])|l.insert(0, 1)|l.remove(1)|l.clear()
d.__class__|s.__class__.__mro__|s.__len__()|''.__doc__|d._x|d['__class__']|range.__call__|namespace.__init__|s.format.__globals__|(1).__class__
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|'ǅa'.swapcase()|u.upper()|u.lower()|u.title()|u.capitalize()|'ΑΣ ΑΣΑ Σ'.lower()|'ΑΣ.'.lower()|'İ'.lower()|'ß'.upper()|"they're 3rd-party o'neil".title()|'ǆ'.upper()|'ǆ'.title()|'ﬁx'.capitalize()|'ʼn'.upper()|'あa b'.title()|'ªb'.title()|'ÿ'.upper()|'µ'.upper()
s.strip('Hd')|' \t\n a \x0b\x1c'.strip()|'\u00a0a\u2003'.strip()|'\u200ba'.strip()|'xxaxx'.lstrip('x')|'xxaxx'.rstrip('x')|'abc'.strip('')|'abc'.strip(none)|'a'.strip(1)|s.strip('Hello', 'x')|'ab'.lstrip('ba')
'a,b,,c'.split(',')|'a,b,,c'.split(',', 1)|'a,b,,c'.rsplit(',', 1)|' a  b '.split()|' a  b c '.split(none, 1)|' a  b c '.rsplit(none, 1)|''.split()|''.split(',')|'abc'.split('')|'a-b_c'.split('-')[-1]|'a b'.split(' ', maxsplit=1)|'a b c'.split(sep=' ')|'a b'.split(1)|'aXbXc'.split('X', -1)|'aXbXc'.split('X', 0)|' a b '.split(maxsplit=0)|' a b  c '.split(none, 2)|'aXbXc'.rsplit('X', 0)
'a\nb\r\nc\rd\x0be\x0cf\x1cg\x85h\u2028i'.splitlines()|'a\n'.splitlines()|''.splitlines()|'\n'.splitlines()
s.replace('l', 'L')|s.replace('l', 'L', 1)|s.replace('', '-')|s.replace('l', '')|s.replace('x', 'y')|s.replace(1, 2)|s.replace('l', 'L', -1)|s.replace('l', 'L', 0)|''.replace('', 'a')|'aaa'.replace('aa', 'b')
s.startswith('He')|s.startswith(('x', 'He'))|s.endswith('ld')|s.endswith(('a', 'd'))|s.startswith('')|s.startswith(1)|s.startswith(['He'])|s.startswith(())
s.find('o')|s.find('z')|s.rfind('o')|s.index('o')|s.index('z')|s.rindex('o')|s.count('o')|s.count('')|u.find('Σ')|s.find('')|'aaaa'.count('aa')
'-'.join(['a', 'b'])|'-'.join('abc')|'-'.join([1])|'-'.join([])|'-'.join(d)|'-'.join(nope)|', '.join(w|sort)|'-'.join(1)
'7'.zfill(3)|'-7'.zfill(4)|'+a'.zfill(4)|'abc'.zfill(2)|''.zfill(2)|'ab'.center(5)|'ab'.center(6, '*')|'abc'.center(6)|'ab'.ljust(4)|'ab'.rjust(4, '.')|'ab'.ljust(1)|'ab'.center(5, 'xy')
'a=b=c'.partition('=')|'a=b=c'.rpartition('=')|'abc'.partition('=')|'abc'.rpartition('=')|'abc'.partition('')|'TestHook'.removeprefix('Test')|'TestHook'.removesuffix('Hook')|'a'.removeprefix('b')|'a'.removesuffix('')
'abc'.isalpha()|'a1'.isalnum()|'12'.isdigit()|'²'.isdigit()|'½'.isdigit()|' \t'.isspace()|''.isspace()|'abc'.islower()|'ABC'.isupper()|'A1'.isupper()|''.isalpha()|'é'.isalpha()|'あ'.isalpha()|'あ'.islower()|'٣'.isdigit()
'%s-%s' % (1, 'a')|'%d' % 7|'%d' % 7.9|'%d' % true|'%d' % '7'|'%5d|%-5d|%05d' % (7, 7, 7)|'%.2f' % 3.14159|'%5.1f' % 2.25|'%s' % none|'%s' % [1]|'%%' % ()|'%s' % (1, 2)|'%s %s' % 1|'%(z)s' % {'a': 1}|'%+d' % 7|'% d' % 7|'%.3s' % 'abcdef'|'%10s|' % 'ab'|'%-10s|' % 'ab'|'abc' % 1|'%' % 1|'%y' % 1|'%s' % ()|'%s' % nope|'%.0f' % 2.5|'%.0f' % 3.5|'%f' % 1|'%5s' % true|'%s' % ((1, 2),)
'{} {}'.format(1, 2)|'{0} {1} {0}'.format('a', 'b')|'{a}'.format(a=1)|'{:.2f}'.format(3.14159)|'{{}}'.format()|'{'.format()|'}'.format()|'{}'.format()|'{x}'.format()|'{:d}'.format('a')|'{:s}'.format(1)|'{:10.3f}|'.format(2.5)|'{} {0}'.format(1)|'{}'.format(none)|'{:5}|'.format(none)|'{}'.format(1.0)|'{}'.format([1, 'a'])|'{:.0f}'.format(0.5)|'{!x}'.format(1)
s|upper|s|lower|s|title|s|capitalize|u|upper|u|title|u|capitalize|n|upper|none|upper|nope|upper|"foo-bar (baz) [qux] it's"|title|'hello wORLD'|title|' a '|trim|'xax'|trim('x')|5|trim|nope|trim|s|replace('l', 'L')|s|replace('l', 'L', 1)|5|replace(5, 6)|s|reverse|l|reverse|list|l|reverse|d|reverse|list|n|reverse
s|length|l|length|d|length|u|length|n|length|none|length|nope|length|(1, 2)|count|range(5)|length|d.items()|length|l|map('string')|length
s|first|l|first|[]|first|s|last|[]|last|d|first|n|first|l|last|''|first|''|last|(1, 2)|first|l|map('abs')|first|l|map('abs')|last|nope|first|d|last
l|join|l|join(', ')|w|join('-')|p|join(', ', attribute='n')|[1, none, nope]|join('|')|s|join('.')|n|join|nope|join|[[1], 'a']|join|d|join(',')|l|join(1)|l|join(none)
l|sort|w|sort|w|sort(case_sensitive=true)|l|sort(reverse=true)|l|sort(true)|p|sort(attribute='v')|map(attribute='n')|join|p|sort(attribute='g', reverse=true)|map(attribute='n')|join|mixed|sort|[none, 1]|sort|s|sort|d|sort|nope|sort|[(2, 'a'), (1, 'b')]|sort|[(2, 'a'), (1, 'b')]|sort(attribute=1)|[[2], [1]]|sort|[true, 0, 2.5]|sort
d|dictsort|{'b': 1, 'A': 2}|dictsort|{'b': 1, 'A': 2}|dictsort(true)|{'b': 1, 'A': 2}|dictsort(by='value')|{'b': 1, 'A': 2}|dictsort(reverse=true)|{'b': 1, 'A': 2}|dictsort(by='x')|d|items|list|nope|items|list|
l|max|l|min|[]|max|[]|min|w|max|w|min|w|min(case_sensitive=true)|p|max(attribute='v')|p|min(attribute='v')|s|max|nope|max|[1, 'a']|max|l|sum|p|sum(attribute='v')|p|sum('v', 10)|l|sum(start=5)|w|sum|[]|sum|[1.5, 2]|sum|[[1], [2]]|sum(start=[])|[0.1] * 10|sum
l|unique|list|w|unique|list|w|unique(true)|list|p|unique(attribute='g')|map(attribute='n')|list|[1, 1.0, true, 'a']|unique|list|[[1]]|unique|list|nope|unique|list|'aAb'|unique|list
range(7)|batch(3)|list|[]|batch(2)|list|s|batch(3)|list|range(7)|slice(0)|list
p|groupby('zz')|list
l|map('string')|list|w|map('upper')|list|p|map(attribute='n')|list|p|map(attribute='zz')|list|p|map(attribute='zz', default='-')|list|l|map('nofilter')|list|l|map|list|p|map(attribute='n')|join(',')|l|map('round', 1)|list|w|map('replace', 'a', 'x')|list|p|map(attribute='n.upper')|list|p|map(attribute='n.0')|list|nope|map('upper')|list|5|map('upper')|list|p|map(attribute='v', foo=1)|list|[[1, 2]]|map(attribute=1)|list|[[1, 2]]|map('first')|list|l|map('add', 1)|list|l|map('default', 1)|list
l|select('odd')|list|l|reject('odd')|list|l|select|list|mixed|select('string')|list|[0, 1, '', 'a', none]|select|list|[0, 1, '']|reject|list|l|select('gt', 1)|list|l|select('in', [1, 2])|list|l|select('nope')|list|p|selectattr('v', 'equalto', 2)|map(attribute='n')|list|p|selectattr('v')|list|length|p|selectattr('zz')|list|p|selectattr('zz', 'defined')|list|p|rejectattr('g', 'eq', 'a')|map(attribute='n')|list|p|rejectattr('zz')|list|length|p|selectattr('v', '>', 1)|list|length|p|selectattr('n', 'in', ['x', 'y'])|list|length|p|selectattr('n.foo')|list|p|selectattr|list|l|select('divisibleby', 3)|list|p|selectattr('v', '==', 2)|first|p|selectattr('g', '!=', 'a')|list|length|l|select('lt', 2, 3)|list|nope|select|list
d|tojson|s|tojson|none|tojson|true|tojson|1.0|tojson|1e20|tojson|1e16|tojson|1e-7|tojson|'</script>&\''|tojson|u|tojson|u|tojson(ensure_ascii=true)|'😀'|tojson(ensure_ascii=true)|d|tojson(indent=2)|d|tojson(indent=0)|[]|tojson(indent=2)|{}|tojson(indent=2)|d|tojson(indent='\t')|d|tojson(sort_keys=true)|{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1)|d|tojson(separators=(',', ':'))|[1, {'a': 2}]|tojson(separators=(',', ':'), indent=1)|d|tojson(2)|d|tojson(true)|d|tojson(true, 2)|nope|tojson|{1: 2, none: 3, true: 4, 1.5: 5}|tojson|(1, 2)|tojson|range(3)|tojson|d.items()|tojson|[nope]|tojson|'\u007f\u0080\u2028'|tojson|'\x00\x1f\b\f\n\r\t"\\/'|tojson|{'a': [[], {}, [1, [2]]]}|tojson(indent=2)|big|tojson|1e400|tojson|-1e400|tojson|{(1, 2): 1}|tojson|'a'|tojson|safe|{'a': 1}|tojson(indent=none)|d|tojson(indent=true)|{2: 1, 10: 2}|tojson(sort_keys=true)|{'a': 1, 1: 2}|tojson(sort_keys=true)|l|map('tojson')|join(' ')
n|string|f|string|none|string|true|string|l|string|nope|string|d|string|'5'|int|'5.9'|int|'abc'|int|'abc'|int(3)|''|int|none|int|2.9|int|-2.9|int|true|int|' 5 '|int|'1e3'|int|'0x1f'|int|'1_000'|int|'inf'|int|nope|int|[]|int|1e400|int
'5'|float|'5.9'|float|'abc'|float|'abc'|float(1.5)|none|float|'inf'|float|'-Infinity'|float|'1_0'|float|'1e3'|float|true|float|'0x1f'|float|' 2.5 '|float|nope|float|''|float|7|float|'.5'|float|'5.'|float
f|round|2.675|round(2)|-2.5|round|3.5|round|7|round|7|round(1)|2.1|round(method='ceil')|2.9|round(method='floor')|2.15|round(1, 'ceil')|-2.1|round(0, 'floor')|2.5|round(method='x')|'a'|round|1.005|round(2)|2.5|round|int|-7|abs|2.5|abs|'a'|abs|true|abs|nope|abs
nope|default('x')|nope|default|''|default('x')|''|default('x', true)|none|default('x')|none|default('x', true)|none|d('x', boolean=true)|d.x|default('y')|d.x.y|default('z')|0|default(5, true)|nope|default(value='q')|nope|default(default_value='q')|false|default(1)|nope.x is defined
'a\nb\nc'|indent|'a\nb\nc'|indent(2)|'a\nb\nc'|indent(2, true)|'a\n\nc'|indent(2)|'a\n\nc'|indent(2, blank=true)|'a\nb'|indent('>>')|'a\nb\n'|indent(2)|''|indent|'a\r\nb'|indent(1)|'a\nb'|indent(width=3, first=true)|'\n'|indent(1, true, true)|5|indent
'foo bar baz qux'|truncate(9)|'foo bar baz qux'|truncate(9, true)|'foo bar baz qux'|truncate(11, leeway=0)|'foo bar baz qux'|truncate(9, false, '…')|'foo bar baz qux'|truncate(9, true, '', 0)|'foo'|truncate(1)|'foo bar baz'|truncate(2)|'foobarbazqux'|truncate(5, leeway=0)|'a b c'|wordcount|'a-b  c_d'|wordcount|''|wordcount|'ab'|center(6)|'ab'|center|length|5|center(3)
s|list|d|list|nope|list|n|list|(1, 2)|list|range(3)|list|s|string|length|'<a & "b">'|e|'<a>'|escape|'<a>'|safe|'<a>'|forceescape|'<a>'|e|e|'<a>'|e|forceescape|1|e|('<a>'|safe) ~ '<b>'|'x<'|e|replace('x', '<')|('<a>'|e) + '<b>'|'<b>' + ('<a>'|safe)|('<'|safe) + ('>'|e)|'<a>'|safe|upper|'<a>'|e|length|('a'|safe) == 'a'|{'a': 1}['a'|safe]|'<a> '|safe|trim|[1]|tojson|safe + '&'|('<a>'|e)|tojson|('a'|safe) in 'abc'
'%s-%s'|format(1, 2)|'%s'|format|'%s'|format(1, a=2)|d|attr('b')|d|attr('items')|nope|attr('x')|d|pprint|l|pprint|s|pprint|d|xmlattr|{'a': 1, 'b': none, 'c': '<"'}|xmlattr|{'a': 1}|xmlattr(false)|{'a b': 1}|xmlattr|s|nofilter|5|nofilter(1)
n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|n is number|f is number|t is number|s is string|none is none|nope is none|nope is defined|nope is undefined|n is defined|t is boolean|1 is boolean|t is true|1 is true|false is false|0 is false|n is integer|t is integer|f is float|d is mapping|l is mapping|l is sequence|s is sequence|d is sequence|n is sequence|l is iterable|n is iterable|s is iterable|range(3) is iterable|d.items() is iterable|d.items() is sequence|range(3) is sequence|l is sameas l|1 is sameas 1|1 is sameas true|none is sameas none|s is sameas 'x'|'a' is lower|'A' is upper|'' is lower|n is lower|range is callable|s is callable|s.upper is callable|n is eq 7|n is equalto 7|n is ne 7|n is lt 8|n is le 7|n is gt 6|n is ge 8|n is lessthan 8|n is greaterthan 8|n is in [7]|n is not in [7]|'a' is in 'abc'|s is escaped|('a'|e) is escaped|n is == 7|n is not odd|n is not none|not n is odd|n is nosuch|n is odd and f is float|n is divisibleby 7 and true|n is defined == true|1 is number + 1|[1, 2] is sequence and true|nope is mapping|nope is iterable|nope is sequence|none is sequence|none is iterable|nope is string|nope is number|nope is callable|n is not divisibleby 2|l is eq [3, 1, 2]|namespace() is mapping|range(2) is mapping
range(5)|list|range(2, 5)|list|range(5, 2)|list|range(5, 2, -1)|list|range(0, 10, 3)|list|range(0, 5, 0)|range(3)[1]|range(3)[-1]|range(3)[5]|range(9)[2:5]|list|range(2.5)|range('a')|range()|range(1000000)|range(99999)|length|range(100001)|3 in range(5)|range(true)|list|range(-1)|list|range(3) == range(3)|range(3) == [0, 1, 2]|range(5)[::-1]|list|range(stop=3)
dict(a=1)|dict([('a', 1)])|dict({'a': 1}, b=2)|dict()|dict(1)|dict([1])|dict(d).b|dict(a=1).a|namespace(a=1).a|namespace({'a': 1}).a|namespace().x|namespace()['x']|namespace(a=1)['a']|namespace(_a=1)|namespace(a=1) == namespace(a=1)
strftime_now('%Y-%m-%d')|strftime_now('%d %b %Y')|strftime_now('%A, %B %d, %Y')|strftime_now('%H:%M:%S %p %I')|strftime_now('%j %y %a %%')|strftime_now('%-d %-m %-H %-I %-M %-S')|strftime_now('')|strftime_now('x%Yx')|strftime_now('%F %T %R %D')|strftime_now('%e %D')|strftime_now('%c')|strftime_now('%x %X')|strftime_now('%Z%z')|strftime_now()|strftime_now(1)|strftime_now('é %Y')
raise_exception('boom')|raise_exception()|raise_exception(1)|caller|loop|varargs|kwargs|nope ~ 1|nope + 1|1 + nope|nope * 2|-nope|nope < 1|nope in [1]|1 in nope|nope|string|nope and 1|nope or 2|[nope]|{'a': nope}|(nope,)|nope == none|nope is sameas nope|nope[0]|nope.a.b|s.nope.a|s.nope|d.nope|d.nope ~ 'x'|'%s' % d.nope|nope|length|nope|abs
[1, 2] + [3]|[1] + (2,)|(1,) + (2,)|[1] * 3|2 * [1]|[1] * -1|'ab' * 2|2 * 'ab'|'a' + 1|1 + 'a'|'a' ~ 1 ~ none ~ true ~ 2.5 ~ [1]|[1] - [1]|'a' - 'b'|'a' * 'b'|none + 1|true + true|true * 'a'|{'a': 1} + {'b': 2}|1 ~ 2 + 3|'a' ~ 'b' * 2|1 + 2 ~ 3|-'a'|+'a'|+5|--5|-true|- 2.5|1 - - 1|'a' 'b'|'a' 'b'.upper()|2 * 3 ~ 4|5 / 2 * 2|7 // 2 * 2|2 + 3 * 4 ** 2|(2 + 3) * 4|10 - 3 - 2|2 ** 3 ** 2
'\n\t\\\'\"'|"\n\t\\\"\'"|'\x41\u00e9\U0001f600'|'\q'|'a\
b'|'é'|"it's"|'say "x"'|'\a\b\f\v\r'|'\x4'|'\u12'|['a"b', "c'd", 'e\'f"g']|['\n', '\\', '\x00', '\x7f', '\u00a0', '\u2028', '😀', 'é']|[1.0, 1e20, none, true, 'a']|{'a': (1,), 'b': ()}|[[]]|('a',)|(1, 'b', none)
""".strip("\n")

# What Jinja renders and package jinja does not support: it must be an error there. Lines as in EXPRESSIONS or SNIPPETS.
UNSUPPORTED = r"""
2 ** 200|big + 1|big * big|big // 7|big % 97|-big|big / 3|big == 12345678901234567890123|big > 1e10|big < 1.3e22|9223372036854775807 + 1|9007199254740993 + 0
9007199254740993 == 9007199254740992.0|9007199254740993 - 1|10 ** 25 % 7|-10 ** 25 // 3|2 ** 63|-2 ** 63|(2 ** 64) // (2 ** 62)|big|int|{(1, 2): 3}[(1, 2)]|u.swapcase()|u.casefold()
'²'.isdecimal()|'½'.isnumeric()|'Ab Cd'.istitle()|'AB'.istitle()|'a_1'.isidentifier()|'1a'.isidentifier()|'é'.isascii()|'a\n'.isprintable()|'%r' % 'a'|'%(a)s' % {'a': 1}
'%(a)d-%(b)s' % {'a': 1, 'b': 2}|'%i' % 7|'%d' % big|'%u' % 3|'%e' % 12345.678|'%g' % 0.00001|'%x' % 255|'%o' % 8|'{:5d}|'.format(7)|'{:<5}|{:>5}|'.format('a', 'b')|'{:05d}'.format(-7)|'{:x}'.format(255)|'{:08b}'.format(5)
'{:e}'.format(12345.6)|'{:g}'.format(1e-7)|'{!r}'.format('a')|'{!s}'.format('a')|'{:.3}'.format('abcdef')|'{:+}'.format(7)|'{:5}|'.format(true)|'{:}'.format(2.50)|'{:f}'.format(3)
'{: }'.format(3)|range(7)|batch(3, 'x')|list|range(7)|slice(3)|list|range(7)|slice(3, 'x')|list|range(2)|slice(3)|list|[]|slice(2)|list|p|groupby('g')|list
p|groupby('g', case_sensitive=true)|map('first')|list|p|groupby('v')|map('last')|list|p|groupby('zz', default=0)|list|p|groupby(attribute='g')|map(attribute='grouper')|list
p|groupby('g')|map(attribute='list')|map('length')|list|[]|groupby('x')|list|(p|groupby('g'))[0].grouper|(p|groupby('g'))[0][1]|length|p|map('attr', 'n')|list|'0x1f'|int(base=16)
'ff'|int(0, 16)|'101'|int(base=2)|'12345678901234567890'|int|1e20|int|'nan'|float|1234.5|round(-2)|25|round(-1)|35|round(-1)|big|abs|'%(a)s'|format(a=3)|s|attr('upper')
'upper' is filter|'nofilter' is filter|'odd' is test|'x' is test|range(3)|range(1, 3)|range(1, 9, 2)|'\101\0'|'\400'|1e300|int|(1, 2) in {'a': 1}|(1, 2) not in {'a': 1}|'٣'|int|'1٣'|float
{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }};{% endfor %}
{% for i in [1, 1, 2] %}{% if loop.changed(i, 0) %}{{ i }}{% endif %}{% endfor %}
{% for i in [1, 1, 2] %}{% if loop.changed(i) %}a{% endif %}{% if loop.changed(0) %}b{% endif %}{% endfor %}
{{ p|groupby('g')|length }}{% for g, items in p|groupby('g') %}{{ g }}:{{ items|length }};{% endfor %}
{% for g in p|groupby('v') %}{{ g.grouper }}={{ g.list|map(attribute='n')|join('+') }};{% endfor %}
{% for row in range(7)|batch(3, '-') %}{{ row|join }};{% endfor %}
{% macro f(a) %}x{% endmacro %}{{ f.name }}
{% macro f(a) %}x{% endmacro %}{{ f }}
{% macro f(a) %}x{% endmacro %}{{ f.arguments }}
""".strip("\n")

# Whole snippets, one a line; \n stands for a line break in a snippet that starts with "=".
SNIPPETS = r"""
{% for i in l %}{{ i }}{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}
{% for i in nope %}x{% else %}empty{% endfor %}
{% for i in none %}x{% endfor %}
{% for i in 5 %}x{% endfor %}
{% for c in s %}{{ c }}.{% endfor %}
{% for k in d %}{{ k }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|items %}{{ loop.index }}{{ k }};{% endfor %}
{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }};{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }}{% endfor %}
{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}
{% for i in l if loop.first %}{{ i }}{% endfor %}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}
{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for i in l %}{{ loop.cycle() }}{% endfor %}
{% for i in l %}{{ loop.cycle(*w) }}{% endfor %}
{% for i in l %}{{ loop.depth }}{{ loop.depth0 }}{% for j in l %}{{ loop.depth }}{% endfor %}{% endfor %}
{% for i in l %}{{ loop.nope }}{{ loop['index'] }}{% endfor %}
{% for i in l %}{{ loop.nope.x }}{% endfor %}
{% for n in tree recursive %}{{ loop.depth }}{{ n.n }}{% if n.c %}({{ loop(n.c) }}){% endif %};{% endfor %}
{% for n in tree recursive %}{{ n.n }}[{{ loop(n.c) }}]{% else %}-{% endfor %}
{% for n in tree recursive %}{{ loop.index }}{{ loop(n.c)|upper }}{{ loop.index }}{% endfor %}
{% for n in tree if n.c recursive %}{{ n.n }}{{ loop(n.c) }}{% endfor %}
{% for n in tree %}{{ loop(n.c) }}{% endfor %}
{% for n in tree recursive %}{% set x = loop %}{% for m in n.c %}{{ x(m.c) }}{{ m.n }}{% endfor %}{% endfor %}
{% for i in l recursive %}{{ loop(l) }}{% endfor %}
{% for i in range(10) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in range(5) %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}
{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }};{% endfor %}{% endfor %}
{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{% else %}e{% endfor %}
{% for i in range(3) %}{% break %}{% else %}e{% endfor %}
{% for i in range(3) %}{% continue %}{{ i }}{% else %}e{% endfor %}
{% break %}
{% if true %}{% continue %}{% endif %}
{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for i in l %}{% set x = i %}{% endfor %}{{ x }}
{% set x = 0 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set x = 0 %}{% if true %}{% set x = 1 %}{% endif %}{{ x }}
{% for i in l %}{% if loop.first %}{% set y = i %}{% endif %}{{ y }};{% endfor %}
{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}
{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}
{% set ns.x = 1 %}
{% set d.x = 1 %}
{% set ns = namespace(d) %}{{ ns.b }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set ns = namespace(x=1) %}{% macro m() %}{% set ns.x = 2 %}{% endmacro %}{{ m() }}{{ ns.x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = [1, 2, 3] %}{{ a }}
{% set a = 1, %}{{ a }}
{% set a = 1, 2 %}{{ a }}
{% set (a, b) = 'xy' %}{{ a }}{{ b }}
{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}
{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]
{% set x | upper %}abc{% endset %}{{ x }}
{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}
{% set x %}<{% endset %}{{ x + '>' }}{{ x is string }}{{ x|length }}
{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}
{% set x = 1 %}{% set x %}{{ x }}2{% endset %}{{ x }}
{% set x %}{% set y = 2 %}{% endset %}{{ y }}
{% set loop = 1 %}{% for i in l %}{{ loop.index }}{% endfor %}{{ loop }}
{% set none = 1 %}
{% set true = 1 %}
{% set 1 = 2 %}
{% set a.b.c = 2 %}
{% set a[0] = 2 %}
{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=5) }}
{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(1, 2, 3) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=1) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a, a2=a) %}{{ a2 }}{% endmacro %}{{ f(1) }}
{% macro f(a=1, b) %}{{ a }}{% endmacro %}{{ f() }}
{% macro f(a=l) %}{{ a }}{% endmacro %}{{ f() }}
{% macro f(a) %}[{{ a is defined }}{{ a }}]{% endmacro %}{{ f() }}{{ f(none) }}
{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}
{% macro f(x) %}{{ x }}{{ varargs|join(',') }}{% endmacro %}{{ f(1, 2, 3) }}
{% macro f(x) %}{{ x }}{{ kwargs|tojson }}{% endmacro %}{{ f(1, y=2) }}
{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}
{% macro f() %}{{ caller('a', 1) }}{% endmacro %}{% call(x, y) f() %}{{ x }}{{ y }}{% endcall %}
{% macro f() %}{{ caller() }}{% endmacro %}{% call(x=5) f() %}{{ x }}{% endcall %}
{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}
{% macro f() %}a{% endmacro %}{% call f() %}x{% endcall %}
{% macro f(n) %}{{ caller(n) }}{% endmacro %}{% for i in l %}{% call(x) f(i) %}{{ x }}{{ i }}{% endcall %}{% endfor %}
{% macro f() %}{% if caller %}{{ caller() }}{% else %}no{% endif %}{% endmacro %}{{ f() }}{% call f() %}y{% endcall %}
{% macro f() %}x{% endmacro %}{{ f is callable }}
{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}
{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}
{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}
{% for i in l %}{% macro f() %}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}
{{ f() }}{% macro f() %}x{% endmacro %}
{% if true %}{% macro f() %}x{% endmacro %}{% endif %}{{ f() }}
{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ n * 2 }}{% endmacro %}{{ f(3) }}
{% macro f() %}  x  {% endmacro %}[{{ f()|trim }}][{{ f() + 'y' }}][{{ f()|length }}]
{% macro f(x) -%} {{ x }} {%- endmacro %}{{ f('<')|upper }}
{% macro f(d) %}{% for k, v in d.items() %}{{ k }}{% if v is mapping %}({{ f(v) }}){% else %}={{ v }}{% endif %}{% endfor %}{% endmacro %}{{ f({'a': {'b': 1}, 'c': 2}) }}
{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}{{ f(1, *[2]) }}
{{ '%s %s' % (1, 2) }}{{ dict(**{'a': 1}) }}{{ dict(d, **{'z': 1})|length }}
{{ range(*[1, 4])|list }}
{{ s.split(*['o']) }}{{ s.replace(old='a') }}
{% filter upper %}abc{{ s }}{% endfilter %}
{% filter replace('a', 'b')|upper %}abc{% endfilter %}
{% filter trim %}  x {% endfilter %}
{% filter nosuch %}x{% endfilter %}
{% generation %}abc{% endgeneration %}
{% for m in l %}{% generation %}{{ m }}{% set q = m %}{% endgeneration %}{{ q }}{% endfor %}
{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}
{% for m in l %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}
{%- generation -%} a {%- endgeneration -%} b
{% for m in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% raw %}{{ x }}{% y %}{% endraw %}
=a\n{% raw %}\n{{ x }}\n{% endraw %}\nb
{%- raw -%} x {%- endraw -%} y
{# comment #}a{#- c -#} b
=a\n{# c #}\nb
=  {# c #}  b
{{ 1 }}{# {{ 2 }} #}{{ 3 }}
{# unclosed
{% if a %}x{% elif n %}y{% else %}z{% endif %}
{% if n > 5 and not e %}y{% endif %}
{% if 1, 2 %}y{% endif %}
{% if %}y{% endif %}
{% if 1 %}y
{% endif %}
{% else %}
{% if 1 %}{% else %}{% else %}{% endif %}
{% if 1 %}{% endfor %}
{% for x in y %}{% endif %}
{% endmacro %}
{{ 1 2 }}
{{ }}
{{ 1
{{ (1 }}
{{ 1) }}
{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}
{{ [,] }}
{{ {1} }}
{{ {'a'} }}
{{ a.1 }}{{ l.0 }}{{ l.1 }}
{{ p.0.n }}{{ p[0].n }}{{ p.0['n'] }}
{{ s.0 }}
{{ l . 0 }}{{ d . b }}
{{ n.0 }}
{{ 1.5.x }}
{{ 1..x }}
{{ 1if 1else 2 }}
{{ not }}
{{ n is }}
{{ n| }}
{{ n|upper() }}{{ n | upper ( ) }}
{{ s|upper.x }}
{{ (s|upper)[0] }}{{ s|upper|lower }}
{{ s|replace('l', 'x')[0] }}
{{ -n|abs }}{{ (-n)|abs }}{{ - n | abs }}{{ -f|round }}
{{ 1 + n|abs }}{{ (1 + neg)|abs }}{{ 'a' ~ neg|abs }}{{ 2 ** n|abs }}
{{ n is odd|string }}
{{ l|map('string')|map('upper')|join }}
{{ not n is odd }}{{ n is odd is true }}
{{ 1 if n else }}
{{ 1 if n else 2 if e else 3 }}{{ (1 if e) }}{{ (1 if e) is defined }}
{{ 'a' if n == 7 else 'b' ~ 'c' }}
{{ 1 if 1 if 1 else 0 else 0 }}
{{ x = 1 }}
{{ 'a
{{ 'a' "b" 'c' }}
{{ true }}{{ True }}{{ TRUE }}
{{ none }}{{ None }}{{ null }}{{ false }}{{ False }}
{{ True is true }}{{ None is none }}
{{ and }}
{{ in }}
{{ if }}
{{ for }}
{{ if.x }}{{ d.if }}{{ d.in }}{{ d.is }}{{ d.not }}
{% set in = 1 %}
{% set if = 1 %}{{ if }}
{{ é }}{{ 'x' }}{% set é = 1 %}{{ é }}
{{ $ }}
{{ a ? b : c }}
{{ a && b }}
{{ !a }}
{{ a | b | }}
{{ a..b }}
{{ [1][0][0] }}
{{ "a" in "abc" }}{{ 1 in "abc" }}
{{ none in [none] }}{{ 1 in {1: 2} }}{{ [1] in [[1]] }}{{ [1] in d }}
{{ 1 not in [2] }}{{ not 1 in [2] }}{{ not (1 in [2]) }}
{{ l is not none and l|length > 2 }}
{% if s is string and s is not mapping %}y{% endif %}
{% if d is mapping and 'a' in d and d.a is not none %}y{% endif %}
{{ d.a[-1] is mapping }}{{ d['a'][::-1] }}{{ d.get('a')[0] }}
{{ l[-1:][0] }}{{ l[:-1] }}{{ l[n:] }}{{ l[zero] }}
{{ s[n:][:2] }}{{ s[:n][-1] }}{{ s[none:2] }}{{ s['1':] }}
{{ s[1:2:3:4] }}
{{ s.split(' ')[0]|lower }}{{ s.split()|map('first')|join }}
{{ p|map(attribute='n')|unique|sort|join(',') }}
{{ p|selectattr('g', 'equalto', 'a')|map(attribute='v')|sum }}
{% set g = l|map('string') %}{{ g|join }}{{ g|join }}
{% set g = l|map('string') %}{% for i in g %}{{ i }}{{ loop.length }}{{ loop.last }}{% endfor %}
{% set g = l|select %}{{ g is iterable }}{{ g is sequence }}{{ g|first }}
{% set g = l|map('string') %}{{ g[0] }}
{% set r = l|reverse %}{{ r|list }}{{ r|list }}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% do l.append(1) %}
{% trans %}x{% endtrans %}
{% debug %}
{% nosuch %}
{% %}
=a\n{% if true %}\nb\n{% endif %}\nc
=a\n  {% if true %}\n  b\n  {% endif %}\nc
=a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc
=a\n{% if true +%}\nb\n{% endif +%}\nc
=a\n{%- if true -%}\nb\n{%- endif -%}\nc
=a  {{- 1 -}}  b
=a\n\n{{- 1 -}}\n\nb
=a {% if true -%} b {%- endif %} c
=  {{ 1 }}  \n
=  {% set x = 1 %}  \n{{ x }}
=\t{% set x = 1 %}\n{{ x }}
=a{% set x = 1 %}\nb
={% set x = 1 %}\n\nb
={{ 1 }}\n{{ 2 }}\n
={{ 1 }}\n\n
=a\r\nb{% if 1 %}\r\nc{% endif %}\r\n
=a\rb
=x {%- set a = 1 -%} \n\n y
=x\n{#- c -#}\ny
=x\n  {# c #}  \ny
=x\n  {# c -#}  \ny
={%- for i in l -%}\n{{ i }}\n{%- endfor -%}
={% for i in l %}\n  {{ i }}\n{% endfor %}\nend
={% for i in l %}{{ i }}\n{% endfor %}end
=  {%- for i in l %}\n  {{- i }}\n  {%- endfor %}\n
={%- if 1 +%}\n x{%- endif %}
=a\n {%- raw %}\n x {% endraw %}\nb
={{ 'a\\nb' }}{{ "a\nb" }}
=\u00a0{% if 1 %}x{% endif %}
={{ 1 -}}\n\t\u00a0 x
=\x0b{% if 1 %}x{% endif %}\x0c{%- if 1 %}y{% endif %}
={{\n1\n+\n2\n}}
={%\nif\n1\n%}y{%\nendif\n%}
={{ {'a':\n1}\n.a }}
""".strip("\n")

TEMPLATES = {
    "chatml, tools and thoughts": r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nSignatures within <tools></tools>:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}{{- raise_exception('unknown role ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}""",
    "headers and dates": r"""
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start|>system<|end|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and tools_in_user_message is defined and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>\n\n{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot|>" }}
    {%- else %}
        {{- "<|start|>ipython<|end|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\n\n' }}{%- endif %}""",
    "alternating turns": r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}""",
    "parts and images": r"""{% set image_count = namespace(value=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You help.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "turns with first user prefix": r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Conversation roles must alternate") }}{%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}""",
    "typed tools": r"""
{%- macro type_of(p) -%}
    {%- if p.type == "array" -%}{%- if p["items"] -%}{{ type_of(p["items"]) + "[]" }}{%- else -%}any[]{%- endif -%}
    {%- elif p.enum is defined and p.enum is iterable and p.enum|length > 0 -%}{{- '"' + p.enum|join('" | "') + '"' -}}
    {%- elif p.type is defined and p.type is iterable and p.type is not string -%}{{ p.type|join(" | ") }}
    {%- elif p.type == "object" -%}
        {%- if p.properties -%}{ {%- for k, v in p.properties.items() %}{{ k }}{% if k not in (p.required or []) %}?{% endif %}: {{ type_of(v) }}{{ ", " if not loop.last }}{%- endfor -%} }{%- else -%}object{%- endif -%}
    {%- else -%}{{ {"string": "str", "number": "float", "integer": "int", "boolean": "bool"}.get(p.type, "any") }}
    {%- endif -%}
    {%- if p.default is defined %} = {{ p.default|tojson }}{% endif %}
{%- endmacro -%}
{%- macro tool(f, indent_by=4) -%}
    {%- set pad = ' ' * indent_by -%}
    def {{ f.name }}({% for k, v in (f.parameters.properties or {})|dictsort %}{{ k }}: {{ type_of(v) }}{% if not loop.last %}, {% endif %}{% endfor %}):
{{ pad }}"""
    + '"""{{ (f.description or "")|indent(indent_by) }}"""' + r"""
{% endmacro -%}
{% if tools %}{% for t in tools %}{{ tool(t.function if t.function is defined else t, indent_by=2 * loop.index) }}{% endfor %}
{% endif %}
{% for m in messages if m.role != 'developer' %}{{ loop.cycle('>', '*') }}{{ m.role|capitalize|replace('_', ' ') }}: {{ (m.content or '')|string|truncate(40) if m.content is not mapping else m.content|tojson(sort_keys=true) }}
{% for c in (m.tool_calls|default([], true)) %}  -> {{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson if v is not string else "'%s'" % v }}{{ ", " if not loop.last else "" }}{% endfor %})
{% endfor %}{% else %}nothing{% endfor %}""",
    "marked generation": r"""{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|assistant|>\n' }}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else %}{{- '<|' ~ message.role ~ '|>\n' ~ message.content ~ '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{% endif %}""",
    "last turn and documents": r"""{%- set last = namespace(user=-1, tool=-1, thinking=enable_thinking|default(true)) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- elif m.role == 'tool' -%}{%- set last.tool = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if documents -%}{%- for doc in documents %}
Document {{ loop.index }}/{{ loop.length }} [{{ doc.title|default('untitled', true)|e }}]: {{ doc['text'][:20] ~ ('…' if doc.text|length > 20) }}
{%- endfor -%}{%- endif -%}
{%- for m in messages %}
[{{ '%02d' % loop.index }}|{{ m['role'].upper()[:4]|center(6) }}|{{ 'last' if loop.index0 == last.user else loop.revindex }}] {{ (m.content|map(attribute='text')|select('defined')|join(' ') if m.content is sequence and m.content is not string else m.content) | default('', true) | trim }}
{%- if m.tool_calls is defined and m.tool_calls is not none and m.tool_calls %} calls {{ m.tool_calls|map(attribute='function')|map(attribute='name')|join(', ') }}{% endif -%}
{%- endfor %}
{{ 'think' if last.thinking else 'answer' }} {{ last.user }} {{ last.tool }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ (messages|last).role }} {{ messages|map(attribute='role')|unique|sort|join('/') }}""",
}

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather \"now\" <b>&\nof a place", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "naïve café 😀"}, "days": {"type": "integer", "default": 3},
    "unit": {"type": "string", "enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": ["string", "null"]}},
    "at": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat"]}}, "required": ["city"]}}}
TOOL2 = {"type": "function", "function": {"name": "noop", "description": None, "parameters": {"type": "object", "properties": {}}}}


def call(arguments, name="get_weather"):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = [
    [m("user", "Hi")],
    [m("system", " Be terse. \n"), m("user", "  1+1?\n"), m("assistant", "2"), m("user", "é 😀 <b>&amp;</b>")],
    [m("user", "a"), m("assistant", "<think>\nwhy\n</think>\n\nb"), m("user", "c"), m("assistant", "<think>x</think>d")],
    [m("user", "a"), m("assistant", "b", reasoning_content="because\n"), m("user", "c")],
    [m("user", "weather?"), m("assistant", "", tool_calls=[call({"city": "Zürich", "days": 2, "x": [1.5, None, True]})]), m("tool", "{\"t\": 20}"), m("assistant", "20°")],
    [m("user", "weather?"), m("assistant", "let me see", tool_calls=[call("{\"city\": \"Paris\"}"), call({}, "noop")]), m("tool", "1"), m("tool", "2"), m("user", "thanks")],
    [m("user", "weather?"), {"role": "assistant", "tool_calls": [call({"city": "Rome"})]}, m("tool", {"t": 1.0})],
    [m("system", [{"type": "text", "text": "sys"}]), m("user", [{"type": "image", "image": "a.png"}, {"type": "text", "text": " what? "}]), m("assistant", "a cat")],
    [m("user", [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "b"}}, {"type": "text", "text": "two"}])],
    [m("user", "a"), m("user", "b")], [m("assistant", "I start"), m("user", "ok"), m("assistant", "")], [m("critic", "boo")], [m("developer", "dev"), m("user", "u")],
    [m("user", "<tool_response>x</tool_response>"), m("assistant", "y")], [m("user", None)], [{"role": "user"}], [],
    [m("user", 5)], [m("system", "a"), m("system", "b"), m("user", "c"), m("assistant", "d" * 60 + " e"), m("user", "f\r\ng")],
]
SETTINGS = [
    {}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False}, {"tools": [TOOL]},
    {"tools": [TOOL, TOOL2], "add_generation_prompt": True, "tools_in_user_message": False, "date_string": "1 Jan 2025"},
    {"documents": [{"title": "A & B", "text": "some words of a text that is long"}, {"title": "", "text": "short"}], "add_vision_id": True},
]


def render(source, context):
    try:
        return {"want": chat_template_utils._compile_jinja_template(source).render(**copy.deepcopy(context)), "err": None}
    except Exception as e:
        return {"want": "", "err": f"{type(e).__name__}: {e}"[:80]}


def expressions(lines):
    for line in lines.replace("\\\nb'|", "\\\x00b'|").split("\n"):
        if line.startswith(("{%", "{{")):
            yield line
        else:
            yield from ("{{ " + e + " }}" for e in pieces(line.replace("\x00", "\n")))


def snippets():
    yield from expressions(EXPRESSIONS)
    for a, op, b in itertools.product(VALUES, OPERATORS, VALUES):
        yield "{{ %s %s %s }}" % (a, op, b)
    for a in VALUES:
        yield from ("{{ -%s }}" % a, "{{ %s|string }}{{ %s|length }}" % (a, a), "{{ %s|tojson }}" % a, "{{ %s|int }}" % a, "{{ %s|float }}" % a,
                    "{{ %s is sequence }}{{ %s is mapping }}{{ %s is number }}{{ not %s }}" % (a, a, a, a), "{{ %s|list }}" % a, "{{ %s[0] }}" % a,
                    "{{ %s|upper }}{{ %s|default(1, true) }}" % (a, a), "{{ %s|abs }}" % a, "{{ %s|round(1) }}" % a, "{{ [%s, 'b']|join('-') }}" % a)
    for line in SNIPPETS.split("\n"):
        if line.startswith("="):
            line = line[1:].replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
            for c in ("\x0b", "\x0c", "\u00a0"):
                line = line.replace(c.encode("unicode_escape").decode() if ord(c) < 0x80 else "\\u00a0", c)
        yield line


FILTERS = set("""abs attr batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format groupby indent int items
join last length list lower map max min nofilter pprint random reject rejectattr replace reverse round safe select selectattr slice sort string striptags
sum title tojson trim truncate unique upper urlencode urlize wordcount wordwrap xmlattr""".split())


def pieces(line):
    """Cuts at each "|" outside quotes and brackets that no filter's name follows."""
    start = depth = 0
    quote = None
    for i, c in enumerate(line):
        if quote:
            if c == quote and not (line[i - 1] == "\\" and line[i - 2] != "\\"):
                quote = None
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "|" and depth == 0:
            name = ""
            for d in line[i + 1:]:
                if not d.isalnum():
                    break
                name += d
            after = line[i + 1 + len(name):i + 2 + len(name)]
            if name in FILTERS and after in ("", "|", "(", " ") and line[i + 1 + len(name):i + 4 + len(name)] not in (" - ", " is"):
                continue
            yield line[start:i]
            start = i + 1
    yield line[start:]


def main():
    cases = []
    unsupported = dict.fromkeys(expressions(UNSUPPORTED), {"want": "", "err": "not supported"})
    for source in dict.fromkeys([*snippets(), *unsupported]):
        cases.append({"tmpl": "snip", "src": source, **(unsupported.get(source) or render(source, CONTEXT))})
    for (name, source), messages, settings in itertools.product(TEMPLATES.items(), CONVERSATIONS, SETTINGS):
        context = {"tools": None, "documents": None, "add_generation_prompt": False, "bos_token": "<s>", "eos_token": "</s>", "messages": messages, **settings}
        cases.append({"tmpl": name, "ctx": context, **render(source, context)})
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("language.json.gz")
    data = json.dumps({"templates": TEMPLATES, "context": CONTEXT, "cases": cases}, ensure_ascii=True).encode()
    out.write_bytes(gzip.compress(data, 9, mtime=0))
    print(len(cases), "cases,", sum(c["err"] is not None for c in cases), "raise,", out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
