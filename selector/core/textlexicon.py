"""Word lists of the text rules: function words by language, and words that mark a topic.

Function words tell languages apart, because every text holds many of them whatever its topic. Topic words are common
vocabulary of the field, not of any collection of prompts; a topic may also hold pairs of words (`valid_json`). A word
may stand in several lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENGLISH: Final = "English"
ROMANSH: Final = "Romansh"

# Romansh is listed in Rumantsch Grischun, Sursilvan and Vallader forms, because no single form covers its texts.
_FUNCTION_WORDS: Mapping[str, str] = {
    ENGLISH: """
        the of and to a in is that for it as with was on be by at this have from or had not are but what
        which you were her all she there would their we him been has when who will more no if out so said an
        its about into than them can only other some could these two may then do first any my now such like
        our over me even most made after also did many before must through where much your way should
        because each just those how too they he his i up why does please write give explain between using
        following""",
    ROMANSH: """
        ed èn ei ein ils il la las da dal dals dalla dallas cun cul culla ins quai quei betg buca nun brich
        che chi ch cha co sco u ni ma era er sin sil sils tar tier tras per pertge pertgei tranter suenter
        avant pli plü fin davart vegn vegnan vegnids vegnida vegnì vegni vegniu ven vain sa ses sia sias lur
        noss nossa tut tuts tuttas quest questa quests questas quels quella quellas quel ina in ün üna igl
        jeu jau eu nus vus ella els ellas ha han hai haja po pon pudess stai ston stat stuess dad ad a en e
        es è esser sun eran faschain ussa uss anc aunc mo schi sche sch scha dapi cunter ensemen ensemble
        mintga mintgin tgi tge tgei qual quala quals l d m n s sez tuttina schon gia fitg fich bler blers
        bleras grond gronda gronds pitschen nov nova onn onns temp uschia uschè usche là qua cur cura
        dentant perquai numnadamain numnà circa dapli damai eir suot sur sura sut fa fan dir di vul vulan""",
    "German": """
        der die das und ist nicht ein eine einen einem einer eines mit von zu den dem des im in auf für als
        auch es an werden aus er hat dass sie nach wird bei um am sind noch wie über so zum haben nur oder
        aber vor zur bis mehr durch man sein wurde sei ich wir ihr ihre ihren mich mir dich dir was wer wenn
        kann können sich diese dieser dieses bitte warum welche schreibe erkläre folgenden kein keine""",
    "Swiss German": """
        isch nid öppis chunnt hesch häsch gsi gsii mir üs wänn chan chönd söll gaht nöd vo uf de dr d s het
        au scho no mit em und i bi""",
    "French": """
        le la les de des du et est une un que qui dans en pour pas sur au aux ce cette ces se sa son ses il
        elle ils elles nous vous je ne plus par avec sont mais ou où été être ont a à même comme leur leurs
        était fait d l qu c n s j bien aussi sans entre après quel quelle quels comment pourquoi écris
        explique moi""",
    "Italian": """
        il lo la i gli le di del della dei delle degli dello e è un una uno che in per non con si da dal
        dalla sono ha hanno come più al alla ai alle nel nella anche ma se o questo questa era su sul sulla
        essere suo sua stato ed io mi ti ci cosa perché quando dopo due scrivi spiega dell all l""",
    "Spanish": """
        el la los las de del y en que un una por con para es se no al lo su sus como más pero fue son ha
        este esta está sobre entre ser también hasta desde nos cuando muy sin me ya o le yo si porque qué
        cómo cuál han había años escribe explica hola""",
    "Portuguese": """
        o a os as de do da dos das e em no na nos nas um uma que por com para é se não ao à mais mas foi
        como ele ela são seu sua ou quando muito já está eu também só pelo pela até isso entre era depois
        sem mesmo você ser escreva explique olá""",
    "Catalan": """
        el la els les i de del dels en un una que per amb és no al als es seu seva com més però són ha
        aquest aquesta també fins ser va sense molt perquè quan jo""",
    "Dutch": """
        de het een van en in is dat op te zijn met voor niet aan er om ook als bij maar of uit dan naar door
        over ze zich wordt werd hij nog kan meer dit deze heeft worden ik je wat hoe waarom geen schrijf""",
    "Swedish": """
        och att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan
        när hur eller hade också vad efter skriv""",
    "Danish or Norwegian": """
        og at det som en på er af av for med til den har de ikke om et han men var jeg seg sig fra vi så kan
        når hvor hvordan eller hadde også hva hvad etter efter skriv""",
    "Polish": """
        i w na z do nie się że to jest o jak po co ale za od przez dla czy są tym tego jego by był była było
        oraz który która które jako proszę napisz""",
    "Czech": """
        a v na se je že s z do to o i ve jako k po by pro jsem byl být jsou ale za jeho který která které
        aby není od jak co napiš""",
    "Romanian": """
        și în de la a cu pe nu o să că un este din mai pentru care au fost sunt ce se prin dar sau al ale
        după dacă când cum scrie""",
    "Turkish": """
        ve bir bu için ile de da çok daha olarak gibi olan ne kadar en o sonra ama değil var mi her veya ben
        sen lütfen yaz nedir""",
    "Finnish": """
        ja on ei se että hän oli en joka mutta kun ovat ole niin myös tai jos mitä kuin sen olen vain miten
        kirjoita""",
    "Hungarian": """
        a az és hogy nem is egy ez azt volt meg van mint de ha csak már még ki el mi ezt lesz vagy kell
        hogyan írj""",
    "Indonesian": """
        yang dan di dari untuk dengan ini itu pada tidak dalam akan ke adalah oleh juga saya ada bisa anda
        apa atau karena lebih telah bagaimana tolong""",
    "Vietnamese": """
        là và của có không được cho một các trong với này những người đã để như về từ khi tôi bạn hãy viết""",
}

CODE: Final = "programming words"
PROGRAMMING: Final = "names of programming tools"
PROGRAMMING_TASKS: Final = "phrases of programming tasks"
MATH: Final = "words of mathematics"
QUANTITY: Final = "words of quantity"
NUMBER_QUESTIONS: Final = "questions for a number"
NEWS: Final = "words of reporting"
ARTICLES: Final = "names of articles"
REQUEST: Final = "words of asking"
TOOLS: Final = "words for tools"
TOOL_OFFERS: Final = "offers of tools"
STEP_ORDERS: Final = "orders for several steps"
JSON_ORDERS: Final = "orders for JSON"
ROMANSH_NAMES: Final = "names of Romansh"
LANGUAGE_NAMES: Final = "names of languages"
WRITING_VERBS: Final = "words of writing and translating"

_TOPIC_WORDS: Mapping[str, str] = {
    CODE: """
        code codes coding script scripts function functions method methods class classes def return returns
        import const let var async await struct enum void int str bool boolean float null none nullptr true
        false elif endif foreach lambda public private static namespace printf println print console stdout
        stderr stdin argv args kwargs self init len range assert raise except exception exceptions traceback
        error errors bug bugs debug debugging compile compiler runtime syntax variable variables parameter
        parameters array arrays string strings tuple tuples dict dictionary list hashmap pointer iterator
        recursion recursive algorithm algorithms implement implements implementation refactor snippet module
        modules library libraries framework backend frontend database table query queries schema endpoint
        server client thread threads callback unittest test tests merge commit branch deprecated widget
        plugin repo repository opcode assembly shader div onclick dataframe cli shell command commands parse
        parser parsing serialize utf ascii char byte bytes file files folder directory http https url urls
        api apis json xml html app apps application bot notebook install package input output
        regex gui data software decorator deploy""",
    PROGRAMMING: """
        python javascript typescript java kotlin rust golang ruby php perl scala csharp haskell clojure
        elixir fortran matlab bash powershell sql postgres postgresql mysql sqlite mongodb redis css react
        angular vue nextjs django flask fastapi numpy pandas pytest pytorch tensorflow sklearn opencv nodejs
        npm docker dockerfile kubernetes kubectl terraform github gitlab linux ubuntu regex vba arduino
        cmake makefile gcc clang llvm cuda opengl unity programming programmer compiler algorithm git code
        coding codebase stacktrace flexbox tailwind mutex semaphore async coroutine goroutine webpack eslint webhook
        kubernetes grep awk sed vscode intellij ide jquery graphql orm rustc cargo pip conda venv
        tcp udp dns ssh websocket oauth jwt css scss svg excel xlsx macro dataframe keras llm gpu""",
    PROGRAMMING_TASKS: """
        array_of given_array an_array the_array string_s a_string the_string integer_array sample_input
        sample_output input_output output_format input_format first_line input_nums linked_list binary_tree
        write_code a_function function_that function_to this_function the_function python_function this_code the_code
        code_snippet code_that code_to following_code source_code a_program program_that a_script script_that script_to
        an_algorithm a_class sql_query this_query a_query regular_expression regular_expressions unit_test unit_tests
        test_cases pull_request stack_trace error_message an_error a_bug the_bug to_implement implement_a
        type_hints data_structure time_complexity command_line web_app rest_api one_liner a_component react_component
        import_numpy import_os import_java public_static static_void int_main return_true return_false""",
    MATH: """
        integer integers prime primes polynomial polynomials equation equations theorem proof prove integral
        integrals derivative derivatives differential differentiable matrix matrices eigenvalue eigenvalues
        vector vectors determinant probability variance binomial poisson converge converges convergence
        convergent limit divided divisor divisible remainder modulo fraction fractions percent percentage
        ratio sum product compute calculate evaluate solve solution roots root radius circle triangle
        rectangle perimeter area volume angle degrees vertices vertex edges graph coloring permutations
        arrangements combinations combinatorics subset subsets finite infinite bounded continuous monotone
        real complex linear lattice topology topological manifold homology theta lambda sigma epsilon mod
        gcd lcm log sin cos tan cot sec sqrt frac int lim cdot leq geq mathbb infty numbers digits digit
        sequence series cyclic abelian isomorphic homomorphism banach hilbert metric convex compact euler
        fourier laplace taylor axis plane curve slope maximum minimum smallest largest expected average mean
        median square cube twice half triple let""",
    QUANTITY: """
        total altogether each per many much more fewer less than times twice half third quarter dozen costs
        cost price prices sells sold sell spends spent spend earns earned earn pays paid pay buys bought buy
        left remaining needs need gives gave eats ate makes made takes one two three four five six seven
        eight nine ten twenty thirty fifty hundred minutes minute hours hour days day weeks miles mile feet
        inches pounds ounces gallons cups dollars cents average speed age old older younger number percent
        same equal enough""",
    NUMBER_QUESTIONS: """
        how_many how_much how_long how_far how_old how_fast how_tall what_is what_s what_was when_do calculate compute
        find_the determine_the what_percentage what_fraction""",
    ARTICLES: """
        following_article this_article news_item news_report news_story news_article following_report headline
        press_release""",
    NEWS: """
        said says told reported reportedly announced according spokesman spokeswoman spokesperson officials
        official police minister president government senate senator congress parliament election elections
        voters campaign republican republicans democrat democrats party court judge lawyer lawyers
        prosecutors investigation arrested charged allegations alleged accused attack attacks killed injured
        deaths victims hospital authorities agency statement interview reporters journalist newspaper
        reuters bbc cnn associated press twitter tweeted monday tuesday wednesday thursday friday saturday
        sunday january february march april june july august september october november december ago season
        coach league championship tournament scored victory defeat military troops war israel russia russian
        chinese korea korean iran trump obama clinton european britain british brexit labour tory washington
        million billion tsunami earthquake hurricane wildfire protest protests protesters strike mayor
        council county residents investors market economy economic analysts executive chief mr mrs former
        late was were had been has its after during since who their country national international federal
        state states article headline news report""",
    REQUEST: """
        you your me my i please help can could would should how what why write explain describe suggest give
        create make tell list compare discuss imagine recommend advice tips ideas email essay story poem
        blog recipe plan letter summary brainstorm rewrite classify answer question questions topic tone
        feel think want need like do does is are given act pretend roleplay review movie book song travel
        best ways draft outline opinion suppose""",
    TOOLS: "tool tools function functions api apis plugin plugins command commands action actions bash terminal",
    TOOL_OFFERS: """
        following_functions these_functions following_tools these_tools following_apis these_apis available_tools
        available_functions available_apis tools_available functions_available apis_available api_list tool_list
        list_tools list_functions function_calls function_calling tool_calls tool_calling tool_call function_call
        api_call api_request call_these possible_functions access_to can_invoke can_call may_call calling_one
        use_tools provided_tools provided_functions function_signatures""",
    STEP_ORDERS: """
        each_turn every_turn your_turns each_step every_step one_tool one_command exactly_one task_is been_finished
        been_completed until_the autonomous agent_that coding_agent interleaving the_environment an_environment
        human_agent user_confirmation observation_step observation_steps action_observation act_step tool_result
        tool_results""",
    JSON_ORDERS: """
        json_only only_json valid_json json_object json_objects json_document json_array json_format json_response
        json_schema json_with json_list json_string json_output in_json as_json to_json into_json a_json
        following_schema schema_below this_schema""",
    ROMANSH_NAMES: """
        romansh romansch rumantsch rumauntsch romontsch romanche romancio rätoromanisch rätoromanische
        rätoromanischen rätoromanischem rätoromanischer raetoromanisch sursilvan vallader puter surmiran
        sutsilvan romanisch romanische romanischen""",
    LANGUAGE_NAMES: """
        german french italian spanish portuguese dutch swedish danish norwegian finnish polish czech
        hungarian romanian greek russian ukrainian turkish arabic hebrew persian hindi bengali urdu tamil
        thai vietnamese indonesian malay chinese mandarin cantonese japanese korean latin catalan swahili""",
    WRITING_VERBS: """
        translate translated translation write answer reply respond rewrite speak übersetze übersetzen schreibe antworte
        traduire traduis traduci scriva respunda translatescha""",
}


def _language_lists() -> dict[str, frozenset[str]]:
    """Other languages leave out the words English has too, and single letters, which code is full of."""
    english = frozenset(_FUNCTION_WORDS[ENGLISH].split())
    lists = {name: frozenset(words.split()) - english for name, words in _FUNCTION_WORDS.items() if name != ENGLISH}
    kept = {name: frozenset(w for w in words if len(w) > 1 or not w.isascii()) for name, words in lists.items()}
    return {ENGLISH: english, **kept}


LANGUAGE_WORDS: Mapping[str, frozenset[str]] = _language_lists()
"""Function words by language, English and Romansh first."""
TOPIC_WORDS: Mapping[str, frozenset[str]] = {name: frozenset(words.split()) for name, words in _TOPIC_WORDS.items()}
"""Topic words, and pairs of words joined by `_`, by list."""
LANGUAGES: tuple[str, ...] = tuple(LANGUAGE_WORDS)
TOPICS: tuple[str, ...] = tuple(TOPIC_WORDS)
