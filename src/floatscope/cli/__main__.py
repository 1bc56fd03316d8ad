from floatscope.cli import main

main()
