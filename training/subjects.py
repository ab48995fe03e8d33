"""Subjects of Python and of this project, each with the short answer that the demo model learns.

The sentences were written for this project; `knowledge` makes the questions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject: its names in questions, and the model's answer."""

    names: tuple[str, ...]
    answer: str


def _subject(names: str, answer: str) -> Subject:
    return Subject(tuple(part.strip() for part in names.split("|")), answer)


SUBJECTS: tuple[Subject, ...] = (
    _subject(
        "Python|the Python language|Python programming|the language Python",
        "Python is a programming language that is easy to read and to write. It is used for web "
        "services, data analysis, automation and machine learning. A Python program is a set of "
        "modules, and each module is a file of statements.",
    ),
    _subject(
        "a list|lists|Python lists|the list type",
        "A list is a sequence of values that can be changed. You write it with square brackets, and you "
        "add an item to its end with the append method.",
    ),
    _subject(
        "a dictionary|dictionaries|a dict|dicts|Python dictionaries",
        "A dictionary maps keys to values. You write it with curly braces, and you look up a value by "
        "writing its key in square brackets.",
    ),
    _subject(
        "a tuple|tuples|Python tuples",
        "A tuple is a sequence of values that cannot be changed after it is made. You write it with "
        "commas, usually inside parentheses.",
    ),
    _subject(
        "a set|sets|Python sets",
        "A set is a collection of different values without an order. It is quick to test whether a "
        "value is in a set.",
    ),
    _subject(
        "a string|strings|Python strings|the str type",
        "A string is a sequence of characters. You write it between quotes, and it cannot be changed "
        "after it is made.",
    ),
    _subject(
        "an integer|integers|the int type",
        "An integer is a whole number. In Python an integer can be as large as the memory allows.",
    ),
    _subject(
        "a float|floats|floating point numbers|the float type",
        "A float is a number with a fractional part. It has a limited precision, so some results are "
        "rounded.",
    ),
    _subject(
        "a boolean|booleans|the bool type",
        "A boolean is one of the two values True and False. Comparisons and tests give a boolean.",
    ),
    _subject(
        "None|the None value",
        "None is the value that stands for nothing. A function without a return gives None.",
    ),
    _subject(
        "a function|functions|Python functions|the def statement",
        "A function is a piece of code with a name. You define it with the def statement, you call it "
        "with arguments, and it returns a value.",
    ),
    _subject(
        "an argument|arguments|function arguments|parameters",
        "An argument is a value that you pass to a function when you call it. Inside the function it is "
        "known by the name of the parameter.",
    ),
    _subject(
        "a lambda|lambda expressions|lambdas|a lambda expression",
        "A lambda is a small function without a name. It holds one expression, and calling it gives the "
        "value of that expression.",
    ),
    _subject(
        "a class|classes|Python classes|the class statement",
        "A class describes a kind of object. It holds the methods that all its instances share, and you "
        "make an instance by calling the class.",
    ),
    _subject(
        "an object|objects|Python objects",
        "An object has an identity, a type and a value. Everything that a Python program handles is an "
        "object.",
    ),
    _subject(
        "a method|methods|Python methods",
        "A method is a function that belongs to a class. When you call it on an instance, the instance "
        "is passed as the first argument.",
    ),
    _subject(
        "inheritance|a subclass|subclasses",
        "Inheritance lets one class build on another. The subclass has all the methods of its base "
        "class and can replace some of them.",
    ),
    _subject(
        "an exception|exceptions|Python exceptions",
        "An exception reports an error while a program runs. You raise it with the raise statement, and "
        "you handle it with a try statement.",
    ),
    _subject(
        "the try statement|try and except|error handling",
        "The try statement runs a block of code and handles its exceptions. Each except clause names "
        "the exceptions that it handles, and the finally clause runs in every case.",
    ),
    _subject(
        "the raise statement|raise",
        "The raise statement raises an exception. The exception travels up the calls until something "
        "handles it.",
    ),
    _subject(
        "a generator|generators|Python generators",
        "A generator is a function that yields values one at a time. It stops at each yield and goes on "
        "from there when the next value is asked for.",
    ),
    _subject(
        "an iterator|iterators|Python iterators",
        "An iterator gives the items of a collection one after another. When there are no more items it "
        "raises StopIteration.",
    ),
    _subject(
        "a module|modules|Python modules",
        "A module is a file of Python code. Other code can use its functions and classes after importing it.",
    ),
    _subject(
        "a package|packages|Python packages",
        "A package is a folder of modules. You import a module of a package by writing the names with dots.",
    ),
    _subject(
        "the import statement|import|importing",
        "The import statement loads a module and binds its name. A module is run only once, when it is "
        "imported for the first time.",
    ),
    _subject(
        "the for statement|the for loop|for loops|a for loop",
        "The for statement runs a block of code once for each item of an iterable. The break statement "
        "ends the loop early.",
    ),
    _subject(
        "the while statement|the while loop|while loops|a while loop",
        "The while statement runs a block of code again and again as long as its condition is true.",
    ),
    _subject(
        "the if statement|if and else|conditions|a condition",
        "The if statement runs a block of code only when its condition is true. The else clause runs "
        "when the condition is false.",
    ),
    _subject(
        "the with statement|a context manager|context managers",
        "The with statement runs a block of code with a context manager. The context manager sets "
        "something up before the block and cleans up after it.",
    ),
    _subject(
        "the return statement|return",
        "The return statement ends a function and gives its value to the caller.",
    ),
    _subject(
        "the break statement|break",
        "The break statement ends the nearest loop at once.",
    ),
    _subject(
        "the continue statement|continue",
        "The continue statement skips the rest of the block and goes on with the next turn of the loop.",
    ),
    _subject(
        "the pass statement|pass",
        "The pass statement does nothing. It is useful where a statement is required but no code has to run.",
    ),
    _subject(
        "the assert statement|assert|assertions",
        "The assert statement checks that a condition is true. When it is false, it raises AssertionError.",
    ),
    _subject(
        "a variable|variables|Python variables|a name in Python",
        "A variable is a name that is bound to an object. An assignment binds the name to another object.",
    ),
    _subject(
        "a comprehension|list comprehensions|comprehensions|a list comprehension",
        "A list comprehension builds a list from an iterable in one expression. It can filter the items "
        "with a condition.",
    ),
    _subject(
        "a decorator|decorators|Python decorators",
        "A decorator is a function that takes another function and returns a new one. You write it with "
        "an at sign above the definition.",
    ),
    _subject(
        "async functions|a coroutine|coroutines|async and await",
        "A coroutine is a function defined with async def. It can wait for other work with await, and "
        "other coroutines run in the meantime.",
    ),
    _subject(
        "the interpreter|the Python interpreter",
        "The interpreter is the program that runs Python code. It reads a file or a line, compiles it "
        "and executes it.",
    ),
    _subject(
        "indentation|blocks|a block of code",
        "Python marks a block of code by its indentation. All lines of a block start at the same column.",
    ),
    _subject(
        "the standard library|the library of Python",
        "The standard library is a collection of modules that come with Python. It has modules for "
        "files, dates, networks, tests and much more.",
    ),
    _subject(
        "type hints|annotations|type annotations",
        "Type hints tell which types a function expects and returns. They help readers and type "
        "checkers, and the interpreter does not enforce them.",
    ),
    _subject(
        "slicing|slices|a slice",
        "A slice takes a part of a sequence. You write the start and the end with a colon in square "
        "brackets, and the end is not included.",
    ),
    _subject(
        "the range function|range",
        "The range function gives a sequence of integers. It is often used in a for loop to repeat "
        "something a number of times.",
    ),
    _subject(
        "the len function|len",
        "The len function returns the number of items in a collection.",
    ),
    _subject(
        "the print function|print",
        "The print function writes its arguments to the standard output, with a space between them.",
    ),
    _subject(
        "garbage collection|memory in Python|memory management",
        "Python frees the memory of an object when nothing refers to it any more. You do not have to "
        "free memory yourself.",
    ),
    _subject(
        "a file|files|reading a file",
        "You open a file with the open function. It is best to open it in a with statement, which "
        "closes the file at the end of the block.",
    ),
    _subject(
        "a test|tests|testing|unit tests",
        "A test runs a piece of code and checks its result. Good tests are small, quick and independent "
        "of each other.",
    ),
    _subject(
        "Ryzanstein|this server|this system",
        "Ryzanstein is a system that serves language models. Requests travel over NATS to groups of "
        "workers, and the ranks of a group compute each token together.",
    ),
    _subject(
        "tensor parallelism|tensor parallel inference",
        "Tensor parallelism splits the matrices of a model over several ranks. Each rank computes its "
        "part, and the parts are added together.",
    ),
    _subject(
        "a language model|language models",
        "A language model predicts the next token of a text. It writes an answer one token after another.",
    ),
    _subject(
        "a token|tokens|tokenization",
        "A token is a small piece of text. A language model reads and writes tokens, not letters.",
    ),
    _subject(
        "NATS|the message bus",
        "NATS is a messaging system. Programs publish messages to subjects, and other programs "
        "subscribe to them.",
    ),
)
