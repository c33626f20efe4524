# ruff: noqa: N802 - pronouns are spelled as they are written
"""The words of the stories: explicit tables, one row a choice."""

from dataclasses import dataclass

NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
)  # fmt: skip


class Number(int):
    """A count that is written as a word."""

    def __format__(self, form: str) -> str:
        return NUMBERS[self]


@dataclass(frozen=True)
class Noun:
    """A thing: `{x}` apple, `{x:a}` an apple, `{x:s}` apples, `{x:three}` three apples."""

    one: str
    many: str = ""

    def __format__(self, form: str) -> str:
        if form == "a":
            return f"{'an' if self.one[0] in 'aeiou' else 'a'} {self.one}"
        many = self.many or self.one + "s"
        if form == "s":
            return many
        if form:
            return f"{form} {self.one if form == 'one' else many}"
        return self.one


@dataclass(frozen=True)
class Beast(Noun):
    """An animal and its sound."""

    sound: str = ""


@dataclass(frozen=True)
class Tool(Noun):
    """Something to pack, the trouble it is good for, and how it helps."""

    trouble: str = ""
    use: str = ""


@dataclass(frozen=True)
class Plight:
    """A small animal's trouble, and what ends it."""

    state: str
    cure: str


@dataclass(frozen=True)
class Character:
    """A name that pronouns must agree with."""

    name: str
    they: str
    kind: str

    def __format__(self, form: str) -> str:
        return self.name

    @property
    def They(self) -> str:
        return self.they.capitalize()

    @property
    def their(self) -> str:
        return {"she": "her", "he": "his"}[self.they]

    @property
    def Their(self) -> str:
        return self.their.capitalize()

    @property
    def them(self) -> str:
        return {"she": "her", "he": "him"}[self.they]


@dataclass(frozen=True)
class Gift:
    """`start` things, of which `less` are given away and `left` remain."""

    start: Number
    less: Number
    left: Number


def nouns(names: str) -> tuple[Noun, ...]:
    return tuple(Noun(name.strip()) for name in names.split(","))


GIRLS = ("Lily", "Mia", "Anna", "Rose", "Ella", "Zoe", "Sara", "Nina", "Ruby", "Lucy")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo", "Tim", "Jack", "Finn", "Noah", "Oscar")
CHILDREN = tuple(Character(name, "she", "girl") for name in GIRLS) + tuple(
    Character(name, "he", "boy") for name in BOYS
)
ANIMALS = (
    Character("Hazel", "she", "squirrel"),
    Character("Rusty", "he", "fox"),
    Character("Bruno", "he", "bear"),
    Character("Pip", "he", "mouse"),
    Character("Willow", "she", "deer"),
    Character("Hoot", "he", "owl"),
    Character("Clover", "she", "rabbit"),
    Character("Dot", "she", "ladybug"),
    Character("Hugo", "he", "hedgehog"),
    Character("Olive", "she", "otter"),
    Character("Penny", "she", "duck"),
    Character("Tuck", "he", "turtle"),
)

MOODS = nouns("happy, kind, brave, curious, little, quiet, clever, cheerful, shy, friendly")
PLACES = (
    "by the river", "near the sea", "on a green hill", "at the edge of the forest",
    "in a quiet village", "beside an old mill", "on a small farm", "below the tall mountains",
)  # fmt: skip
HOBBIES = (
    "sing songs", "dance", "paint pictures", "climb trees", "read books", "tell jokes",
    "count the stars", "jump in puddles", "build towers", "play hide and seek",
)  # fmt: skip
WEATHER = ("sunny", "windy", "snowy", "rainy", "foggy", "warm", "cold", "bright")
SPOTS = (
    "under the bed", "behind the door", "in the basket", "on the shelf", "in the garden",
    "under the old tree", "beside the pond", "inside the big box", "behind the barn",
)  # fmt: skip
GOALS = (
    "the lighthouse", "the castle", "the waterfall", "the big cave", "the island", "the market",
    "the old tower", "the snowy hill",
)  # fmt: skip

COLOURS = nouns("red, blue, green, yellow, purple, orange, white, silver")
TOYS = nouns("ball, kite, drum, boat, train, doll, hat, scarf, bell, robot")
THINGS = (*nouns("apple, pear, shell, egg, flower, button, acorn, stone, plum, feather, carrot"),
          Noun("berry", "berries"))  # fmt: skip
TREATS = (*nouns("cookie, cake, muffin, pancake, bun, pie"),
          Noun("sandwich", "sandwiches"))  # fmt: skip
SEEDS = (*nouns("sunflower, tulip, pumpkin, bean, rose"), Noun("daisy", "daisies"))
SWAPS = nouns("whistle, book, umbrella, marble, basket, flute, puzzle, lantern, mug, ring")
PRIZES = nouns("golden cup, honey cake, blue ribbon, silver medal, bag of nuts, paper crown")
GIFTS = nouns("golden feather, shiny pebble, tiny key, magic seed, glass bead, old coin")
SIGHTS = nouns("rainbow, shooting star, hot air balloon, flock of geese, red sunset, snow cloud")
CUBS = nouns("lamb, kitten, puppy, chick, piglet, pony, swan, calf, baby bird, little frog")

BEASTS = (
    Beast("cow", sound="moo"),
    Beast("goose", sound="honk"),
    Beast("cat", sound="meow"),
    Beast("dog", sound="woof"),
    Beast("sheep", sound="baa"),
    Beast("pig", sound="oink"),
    Beast("frog", sound="croak"),
    Beast("hen", sound="cluck"),
    Beast("donkey", sound="hee-haw"),
    Beast("bee", sound="buzz"),
)
PLIGHTS = (
    Plight("stuck in the mud", "pulled it out of the mud"),
    Plight("caught in a net", "cut the net open"),
    Plight("lost in the tall grass", "led it out of the tall grass"),
    Plight("shaking with cold", "wrapped it in a warm blanket"),
    Plight("very thirsty", "brought it some water"),
    Plight("very hungry", "gave it some bread"),
    Plight("up on a high roof", "fetched a ladder and carried it down"),
    Plight("afraid of the thunder", "held it close until the storm was over"),
)
TOOLS = (
    Tool("umbrella", trouble="it began to rain", use="opened the umbrella, and they stayed dry"),
    Tool("lamp", trouble="it grew very dark", use="lit the lamp, and they could see again"),
    Tool("blanket", trouble="a cold wind blew", use="shared the blanket, and they were warm"),
    Tool("map", trouble="they lost the way", use="looked at the map, and they found the path"),
    Tool("rope", trouble="they came to a steep cliff", use="tied the rope, and they climbed up"),
    Tool("melon", trouble="they got hungry",
         use="cut the melon, and they ate until they were full"),
    Tool("boat", trouble="they came to a wide river", use="rowed the boat, and they got across"),
    Tool("drum", trouble="a big wolf came", use="beat the drum, and the wolf ran away"),
)  # fmt: skip

GIFT_SIZES = tuple(
    Gift(Number(start), Number(less), Number(start - less))
    for start in range(3, 10)
    for less in range(1, start)
)
FEW = tuple(Number(n) for n in range(1, 4))
SOME = tuple(Number(n) for n in range(2, 7))
