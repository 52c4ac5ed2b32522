"""Prompts that ship with the package: seeds for a corpus, and others, held out, on which heads are judged.

Seeds are combinations of a request and a subject, so that a few lines give thousands of different prompts. Held-out
prompts share neither wording nor subject with them.
"""

from __future__ import annotations

import random

_REQUESTS = (
    "Explain {} to a beginner.",
    "What is {}?",
    "Why does {} matter?",
    "Give me five facts about {}.",
    "Write a short poem about {}.",
    "Write a paragraph about {}.",
    "Write a short story in which {} plays a part.",
    "List the advantages and disadvantages of {}.",
    "How has {} changed over the last hundred years?",
    "What are common mistakes people make about {}?",
    "Tell me about the history of {}.",
    "I have to give a talk about {}. Can you give me an outline?",
    "Summarise what is known about {} in three sentences.",
    "What questions should I ask an expert on {}?",
    "Write an email to a friend about {}.",
    "Can you recommend a way to learn about {}?",
    "Make a to-do list for someone who is interested in {}.",
    "Write a dialogue between two people who disagree about {}.",
    "Describe {} in simple words.",
    "Compare {} with something similar.",
    "Give three examples of {}.",
    "Write a short quiz about {} with answers.",
    "What would a world without {} look like?",
    "Write a headline and a short news article about {}.",
    "How would you teach {} to a class of ten-year-olds?",
    "Is it true that {} is hard to understand? Explain.",
    "Write a blog post about {}.",
    "What is the best way to get started with {}?",
    "Translate the idea of {} into an everyday analogy.",
    "Write a product description that has to do with {}.",
    "What are the main parts of {}?",
    "Who are important people connected with {}?",
    "Give me some advice on {}.",
    "Answer in one sentence: what is {}?",
    "Define {} and give an example.",
    "Write a letter to the editor about {}.",
    "Describe a day in the life of someone who works with {}.",
    "What are the health, safety or money aspects of {}?",
    "Write a step-by-step guide to {}.",
    "Argue for {} and then against it.",
)
_SUBJECTS = (
    "photosynthesis", "the water cycle", "volcanoes", "black holes", "the solar system", "earthquakes", "electricity",
    "magnets", "the human heart", "vaccines", "bacteria", "genetics", "evolution", "dinosaurs", "whales", "bees",
    "penguins", "elephants", "cats", "dogs", "horses", "owls", "spiders", "forests", "deserts", "coral reefs",
    "rivers", "mountains", "climate change", "recycling", "solar panels", "wind power", "nuclear energy", "batteries",
    "bicycles", "trains", "airplanes", "electric cars", "bridges", "skyscrapers", "computers", "the internet",
    "programming in Python", "databases", "spreadsheets", "machine learning", "robots", "computer security",
    "smartphones", "video games", "chess", "football", "basketball", "swimming", "running a marathon", "yoga",
    "meditation", "sleep", "healthy eating", "vegetarian cooking", "baking bread", "coffee", "tea", "chocolate",
    "cheese", "gardening", "house plants", "growing tomatoes", "woodworking", "knitting", "photography", "painting",
    "drawing portraits", "playing the guitar", "playing the piano", "jazz", "classical music", "opera", "theatre",
    "poetry", "science fiction", "detective novels", "libraries", "museums", "ancient Egypt", "the Roman Empire",
    "medieval castles", "the Renaissance", "the French Revolution", "the Industrial Revolution", "the moon landing",
    "world maps", "the compass", "printing", "money", "saving for retirement", "taxes", "small businesses",
    "job interviews", "writing a resume", "public speaking", "teamwork", "time management", "learning a language",
    "moving to a new city", "travelling by train", "camping", "hiking", "fishing", "sailing", "weather forecasts",
    "snow", "thunderstorms", "the seasons", "friendship", "raising children", "pets", "volunteering", "democracy",
    "human rights", "philosophy", "logic puzzles", "fractions", "prime numbers", "algebra", "geometry", "statistics",
    "probability", "recursion", "sorting algorithms", "hash tables", "version control", "unit tests", "web pages",
    "online shopping", "advertising", "fashion", "furniture", "architecture", "city parks", "farming", "honey",
)  # fmt: skip
_TASKS = (
    "Write a Python function that {}.",
    "Write a Python program that {}, with comments.",
    "Show me code in JavaScript that {}.",
    "Explain step by step how a program that {} works.",
    "Write a test for a function that {}.",
)
_DOINGS = (
    "adds two numbers", "reverses a string", "finds the largest number in a list", "counts words in a text",
    "checks whether a number is prime", "computes a factorial", "sorts a list of names", "reads a file line by line",
    "removes duplicates from a list", "converts Celsius to Fahrenheit", "merges two dictionaries",
    "checks whether a word is a palindrome", "generates random passwords", "prints a multiplication table",
    "finds common elements of two lists", "computes the average of a list", "counts vowels", "parses a CSV file",
    "draws a triangle of stars", "computes Fibonacci numbers", "calculates compound interest", "validates an email",
)  # fmt: skip
_SUMS = (
    "What is {a} plus {b}?",
    "What is {a} times {b}? Show your work.",
    "I have {a} apples and give away {b}. How many are left?",
    "A train travels {a} kilometres per hour for {b} hours. How far does it go?",
    "If a book costs {a} dollars and a pen costs {b} dollars, what do both cost together?",
    "Divide {a} by {b} and explain the steps.",
    "Is {a} larger than {b}? Why?",
)
_TEXTS = (
    "The bakery on the corner opens at seven. Fresh rolls are sold until noon, and bread until the evening.",
    "Our team met on Tuesday to discuss the budget. We agreed to buy two new laptops and to move the printer.",
    "The river rose after three days of rain. Some cellars were flooded, but nobody was hurt.",
    "Anna planted roses along the fence. Her brother built a small bench, and they sat there every evening.",
    "The museum shows paintings from four centuries. Guided tours start every hour and take forty minutes.",
    "Please send the signed form before Friday. Late forms cannot be processed this month.",
    "The old bridge was closed last week for repairs. Drivers have to take the road through the village.",
    "Scientists found a new kind of beetle in the forest. It is green, very small, and active at night.",
)
_EDITS = (
    "Repeat this text: {}",
    "Rewrite this text in a formal tone: {}",
    "Summarise this: {}",
    "Correct any mistakes in the following text: {}",
    "Translate into French: {}",
    "Make this text longer: {}",
    "Turn this into a list: {}",
    "What is this text about? {}",
    "Write three questions about this text: {}",
)
HELD_OUT: tuple[str, ...] = (
    "How do submarines stay underwater without sinking to the bottom?",
    "My neighbour plays loud music at night. How should I talk to him?",
    "Write a haiku about an abandoned railway station.",
    "Which is heavier, a kilogram of feathers or a kilogram of iron?",
    "Plan a birthday party for a seven-year-old who loves pirates.",
    "Name four rivers in South America and the seas that they flow into.",
    "Draft a polite reply that turns down a wedding invitation.",
    "How can I tell whether an egg is still fresh?",
    "Pretend you are a museum guard and describe your night shift.",
    "What does the word 'serendipity' mean? Use it in a sentence.",
    "Give me a recipe for lentil soup with four servings.",
    "Why do leaves turn red in autumn?",
    "Write a function in Python that returns the second smallest value of a tuple.",
    "Our cat refuses to drink water. What can we try?",
    "Explain the difference between a comet and an asteroid.",
    "Write a limerick about a clumsy waiter.",
    "How does a refrigerator keep food cold?",
    "What should I pack for a week in Iceland in March?",
    "Tell me a joke about mathematicians and explain why it is funny.",
    "Who was Marie Curie and what did she discover?",
    "Rewrite this more politely: 'Send me the report now, you are late again.'",
    "How many minutes are there in a week?",
    "Describe the taste of a lemon to someone who has never eaten one.",
    "What is the difference between weather balloons and satellites?",
    "Suggest three names for a shop that sells used records.",
    "Explain how a zipper works.",
    "Write the opening scene of a play set in a lift that is stuck.",
    "How do I remove a red wine stain from a white carpet?",
    "What were the causes of the First World War?",
    "Write an SQL query that counts orders per customer.",
    "I feel nervous before exams. What helps?",
    "Compare paper maps with navigation apps for a long road trip.",
    "Why is the sea salty but a lake is not?",
    "Write a thank-you note to a retiring colleague.",
    "What is inflation and how does it affect savings?",
    "Describe how glass is made.",
    "Create a weekly workout plan for somebody with bad knees.",
    "Explain what an API is with the example of a restaurant.",
    "Write a bedtime story about a snail that wants to fly.",
    "What makes popcorn pop?",
    "Convert 5 feet 9 inches to centimetres and show the steps.",
    "How does a jury trial work?",
    "Write a slogan for a campaign against food waste.",
    "What is the capital of Australia, and why is it not Sydney?",
    "Explain the rules of badminton briefly.",
    "How should I store fresh basil?",
    "Write a regular expression that matches dates such as 2024-05-17.",
    "What did people do before there were clocks?",
)


def seed_prompt(rng: random.Random) -> str:
    """One prompt of the seeds, drawn at random: mostly questions, some code, sums and edits."""
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(_TASKS).format(rng.choice(_DOINGS))
    if kind < 0.20:
        return rng.choice(_SUMS).format(a=rng.randint(2, 200), b=rng.randint(2, 50))
    if kind < 0.30:
        return rng.choice(_EDITS).format(" ".join(rng.sample(_TEXTS, rng.randint(1, 2))))
    return rng.choice(_REQUESTS).format(rng.choice(_SUBJECTS))
